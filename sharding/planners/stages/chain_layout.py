"""The layout of a chain of modules in one unit: ranks of each kind; and its plan, once the stages are chosen.

The policy `balanced` chooses such a layout.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from sharding.plans.parallelism import CollectivesName, Parallelism
from sharding.plans.plan import Plan
from sharding.plans.schedule_hints import ScheduleHints
from sharding.plans.text.recompute_text import recompute_text
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChainLayout:
    """One unit with a chain of modules, before its layers are divided among its stages.

    Attributes:
        modules: The modules in chain order.
        pp: Pipeline ranks.
        dp: Replicas, as in `UnitPlan`.
        tp: Tensor ranks, as in `UnitPlan`.
        module_tp: Tensor ranks of each module, where they differ.
        chunks: Virtual stages per pipeline rank.
        cp: Context-parallel ranks.
        ep: Expert ranks.
        collectives: As in `UnitPlan`.
        microbatches: Microbatches of a step.
    """

    modules: tuple[str, ...]
    pp: int
    dp: int = 1
    tp: int = 1
    module_tp: tuple[int, ...] = ()
    chunks: int = 1
    cp: int = 1
    ep: int = 1
    collectives: CollectivesName = "all_reduce"
    microbatches: int = 1

    @property
    def stage_count(self) -> int:
        """Number of virtual stages."""
        return self.pp * self.chunks

    @property
    def stage_devices(self) -> int:
        """Devices of one stage."""
        return self.dp * self.cp * self.tp

    def tensor_ranks_of(self, module: str) -> int:
        """Tensor-parallel ranks of one of its modules."""
        return self.module_tp[self.modules.index(module)] if self.module_tp else self.tp

    def replicas_of(self, module: str) -> int:
        """Data-parallel replicas of one of its modules."""
        return self.dp * self.tp // self.tensor_ranks_of(module)

    def unit(self, layers: tuple[int, ...], recompute: Sequence[str], extra_microbatches: int = 0) -> UnitPlan:
        """The unit, on devices from 0 on, named after its last module.

        Args:
            layers: As in `UnitPlan`.
            recompute: As in `UnitPlan`.
            extra_microbatches: As in `UnitPlan`.
        """
        return UnitPlan(
            self.modules[-1],
            self.modules,
            range(self.stage_devices * self.pp),
            layers=layers,
            recompute=tuple(recompute),
            parallelism=Parallelism(
                dp=self.dp,
                tp=self.tp,
                module_tp=self.module_tp,
                chunks=self.chunks,
                cp=self.cp,
                ep=self.ep,
                collectives=self.collectives,
            ),
            schedule_hints=ScheduleHints(extra_microbatches=extra_microbatches),
        )

    def plan(
        self,
        layers: tuple[int, ...],
        policies: Sequence[RecomputePolicy],
        extra_microbatches: int = 0,
    ) -> Plan:
        """The plan of the unit.

        Args:
            layers: As in `UnitPlan`.
            policies: Recomputation policy of every layer of the chain, as plans count them.
            extra_microbatches: As in `UnitPlan`.
        """
        ends: Int[np.ndarray, " s"] = np.cumsum(layers)
        texts = [recompute_text(policies[end - count : end]) for end, count in zip(ends.tolist(), layers, strict=True)]
        schedule = "interleaved" if self.chunks > 1 else "1f1b"
        return Plan((self.unit(layers, texts, extra_microbatches),), self.microbatches, schedule)
