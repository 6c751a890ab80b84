"""The sizes of the groups of devices that divide a unit's work, and the collectives inside of these groups."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from configs.common.short_repr import short_repr
from sharding.axes import CollectiveMatmul, ContextTransfer
from sharding.expert_transfer import ExpertTransferChoice
from sharding.plans.plan_error import UnitFieldError

CollectivesName = Literal["all_reduce", "sequence_parallel", "ring", "mosaic"]


class TensorCollectives(NamedTuple):
    """The collectives of tensor ranks around split matmuls.

    Attributes:
        sequence_parallel: Whether they divide the positions of a row between split matmuls.
        implementation: How the gathers and scatters around the matmuls are done.
    """

    sequence_parallel: bool
    implementation: CollectiveMatmul


TENSOR_COLLECTIVES: dict[CollectivesName, TensorCollectives] = {
    "all_reduce": TensorCollectives(False, "reference"),
    "sequence_parallel": TensorCollectives(True, "reference"),
    "ring": TensorCollectives(True, "ring"),
    "mosaic": TensorCollectives(True, "mosaic"),
}
"""Collectives by the name that a plan gives (`Parallelism.collectives`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How the devices of a unit divide its work, apart from its pipeline stages.

    Attributes:
        dp: Data-parallel replicas of every stage.
        tp: Tensor-parallel ranks of every replica.
        module_tp: Tensor-parallel ranks of each module, where they differ; one of them has `tp`. All modules of a stage
            are on all its dp * tp devices, so that a module has dp * tp / its own ranks replicas
            (`UnitPlan.replicas_of`), which divide the rows of a microbatch among them. Empty: all have `tp`.
        cp: Context-parallel ranks of every replica, which divide the positions of its rows.
        context_transfer: How their attention reaches the positions of other ranks. `ring`: keys and values are sent
            around them (ring attention, arXiv 2310.01889). `all_to_all`: they trade positions for heads before
            attention, and back after it (DeepSpeed-Ulysses, arXiv 2309.14509); cp * tp must divide the heads.
        ep: Expert ranks: `ep` consecutive data-parallel replicas divide the experts of every layer that has some.
            They take no devices of their own.
        expert_transfer: How tokens get to the ranks of their experts: by `gather`, by `all_to_all`, or `auto`, which
            of the two moves less (`sharding.expert_transfer`).
        fsdp: Consecutive data-parallel replicas that divide weights and gradients among them (fully sharded data
            parallelism, ZeRO-3): a layer's weights are gathered whenever it computes, and its gradients scattered. 1:
            every replica holds whole weights for a step (ZeRO-1). Below dp, each group has a copy of the weights, and
            groups sum their gradients once a step. A multiple of `ep`, if above 1.
        chunks: Virtual stages on the devices of each pipeline rank; virtual stage v is placed on the devices of rank v
            % pp (Narayanan et al., arXiv 2104.04473, section 2.2). Elsewhere a virtual stage is a stage like any other.
        pipeline_replicas: Replicas of the whole pipeline, each on devices of its own and with all weights, that take
            whole microbatches by turns (the encoder pipelines of Optimus, arXiv 2408.03505, section 4.1). Gradients
            are summed over all of them once a step; master weights and optimizer state are divided over them too.
        collectives: The collectives of the tensor ranks around split matmuls. `all_reduce`: every rank has all
            positions, and sums are all-reduced. `sequence_parallel`: ranks divide the positions (arXiv 2205.05198),
            which are gathered before a matmul and scattered after one. `ring`: the same, in pieces that are sent while
            others are multiplied. `mosaic`: the same by Hopper kernels where the unit has all devices of one process,
            else `ring`.
    """

    dp: int = 1
    tp: int = 1
    module_tp: tuple[int, ...] = ()
    cp: int = 1
    context_transfer: ContextTransfer = "ring"
    ep: int = 1
    expert_transfer: ExpertTransferChoice = "auto"
    fsdp: int = 1
    chunks: int = 1
    pipeline_replicas: int = 1
    collectives: CollectivesName = "all_reduce"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for key in ("dp", "tp", "cp", "ep", "fsdp", "chunks", "pipeline_replicas"):
            if getattr(self, key) < 1:
                raise UnitFieldError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if self.dp % self.ep:
            raise UnitFieldError(
                f"ep {self.ep} does not divide dp {self.dp}; the replicas divide the experts among them, so choose an "
                "ep that divides dp"
            )
        if self.fsdp > 1 and (self.dp % self.fsdp or self.fsdp % self.ep):
            raise UnitFieldError(
                f"fsdp {self.fsdp} must divide dp {self.dp} and be a multiple of ep {self.ep}; the replicas divide the "
                "weights among them, so choose such a number, or 1 for whole weights"
            )
        choices = {
            "collectives": CollectivesName,
            "expert_transfer": ExpertTransferChoice,
            "context_transfer": ContextTransfer,
        }
        for key, names in choices.items():
            if getattr(self, key) not in get_args(names):
                raise UnitFieldError(f"{key} {getattr(self, key)!r}; choose from {', '.join(get_args(names))}")
        if self.module_tp:
            self._check_module_tp()

    def _check_module_tp(self) -> None:
        given = f"module_tp {list(self.module_tp)}"
        if min(self.module_tp) < 1:
            raise UnitFieldError(f"{given} must be at least 1")
        if self.tp not in self.module_tp:
            raise UnitFieldError(f"{given} does not contain tp {self.tp}; let tp be the tp of one of its modules")
        if len(set(self.module_tp)) == 1:
            raise UnitFieldError(f"{given} is tp {self.tp} for all; leave module_tp out")
        together = math.lcm(*self.module_tp) * max(self.ep, self.fsdp)
        if self.dp * self.tp % together:
            sharing = (("ep", self.ep), ("fsdp", self.fsdp))
            experts = "".join(f" and {name} {size}" for name, size in sharing if size > 1)
            raise UnitFieldError(
                f"{given}{experts} need a multiple of {together} devices a stage, but it has dp {self.dp} x tp "
                f"{self.tp} = {self.dp * self.tp}; choose another dp"
            )
        if self.cp > 1:
            raise UnitFieldError(
                f"{given} with cp {self.cp}; only modules of equal tp can share a stage with cp above 1"
            )

    @property
    def replica_size(self) -> int:
        """Devices of one replica of a stage: cp * tp."""
        return self.cp * self.tp

    @property
    def rank_size(self) -> int:
        """Devices of one pipeline rank of a pipeline replica: dp * cp * tp."""
        return self.dp * self.replica_size

    @property
    def shared_replicas(self) -> int:
        """Groups of devices of a stage that hold whole replicas of every module: dp, unless modules differ in tp."""
        return self.dp * self.tp // math.lcm(self.tp, *self.module_tp)

    def device_count(self, pp: int) -> int:
        """Devices of a unit with `pp` pipeline ranks."""
        return self.pipeline_replicas * self.rank_size * pp

    def product(self, pp: int) -> str:
        """`device_count` as a product for messages; factors of 1 are left out but for dp, tp and pp."""
        replicas = f"pipeline_replicas {self.pipeline_replicas} x " if self.pipeline_replicas > 1 else ""
        context = f" x cp {self.cp}" if self.cp > 1 else ""
        return f"{replicas}dp {self.dp}{context} x tp {self.tp} x pp {pp}"

    def tensor_ranks(self, modules: Sequence[str], module: str) -> int:
        """Tensor-parallel ranks of each replica of one of a unit's modules."""
        return self.module_tp[modules.index(module)] if self.module_tp else self.tp
