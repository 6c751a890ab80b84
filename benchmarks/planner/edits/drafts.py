"""Plans while they are edited: their fields may contradict each other until they are repaired."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Literal

from sharding.plans.device_numbers import Devices
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.text.recompute_text import recompute_text
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy

GivenSeconds = Literal["none", "seconds", "communication"]
"""Which seconds of stages a plan gives its schedule: none, those of ops, or those of their collectives too."""

PARALLELISM = tuple(field.name for field in dataclasses.fields(Parallelism))
SHAPE = ("pipeline_replicas", "pp", "dp", "cp", "tp")
"""Fields of a unit that say how many devices it has, and in which order they are listed."""


@dataclasses.dataclass
class UnitDraft:
    """A unit of a plan that is being edited.

    Attributes:
        original: The unit before the edit.
        parallelism: The fields of its `Parallelism`.
        layers: Layers of every virtual stage.
        policies: Recomputation policy of every layer, in chain order.
        phase_rows, executor: As in `UnitPlan`.
        extra_microbatches, replica_of_microbatch: As in `ScheduleHints`.
    """

    original: UnitPlan
    parallelism: dict[str, Any]
    layers: list[int]
    policies: list[RecomputePolicy]
    phase_rows: int
    executor: str
    extra_microbatches: int
    replica_of_microbatch: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the unit."""
        return self.original.name

    @property
    def modules(self) -> tuple[str, ...]:
        """Its modules, in chain order."""
        return self.original.modules

    @property
    def pp(self) -> int:
        """Number of pipeline ranks."""
        return len(self.layers) // self["chunks"]

    @property
    def replica_count(self) -> int:
        """The most data-parallel replicas of one of its modules."""
        return self["dp"] * self["tp"] // min(self["module_tp"], default=self["tp"])

    @property
    def device_count(self) -> int:
        """Number of devices that it needs."""
        return self["pipeline_replicas"] * self.pp * self["dp"] * self["cp"] * self["tp"]

    @property
    def shape(self) -> tuple[int, ...]:
        """The values of `SHAPE`."""
        return tuple(self.pp if name == "pp" else self[name] for name in SHAPE)

    @property
    def is_reshaped(self) -> bool:
        """Whether it has another shape than before the edit."""
        return self.shape != draft_of_unit(self.original).shape

    def __getitem__(self, name: str) -> Any:
        return self.parallelism[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.parallelism[name] = value

    def stage_slices(self) -> Iterator[slice]:
        """For every virtual stage, its layers in `policies`."""
        ends = list(itertools.accumulate(self.layers))
        return (slice(end - count, end) for end, count in zip(ends, self.layers, strict=True))

    def build(self, devices: Devices) -> UnitPlan:
        """The unit, with the capacities of the original if it has rows of its own; raises PlanError for a bad one."""
        hints = dataclasses.replace(
            self.original.schedule_hints,
            extra_microbatches=self.extra_microbatches,
            replica_of_microbatch=self.replica_of_microbatch,
            forward_seconds=(),
            backward_seconds=(),
            forward_communication=(),
            backward_communication=(),
        )
        return dataclasses.replace(
            self.original,
            devices=devices,
            layers=tuple(self.layers),
            recompute=tuple(recompute_text(self.policies[layers]) for layers in self.stage_slices()),
            parallelism=Parallelism(**self.parallelism),
            phase_rows=self.phase_rows,
            capacities=self.original.capacities if self.phase_rows else (),
            executor=self.executor,
            schedule_hints=hints,
        )


@dataclasses.dataclass
class PlanDraft:
    """A plan that is being edited.

    Attributes:
        original: The plan before the edit.
        units: Its units.
        microbatches, schedule: As in `Plan`.
        given_seconds: Which seconds of stages it gives.
    """

    original: Plan
    units: list[UnitDraft]
    microbatches: int
    schedule: str
    given_seconds: GivenSeconds

    @property
    def keeps_shapes(self) -> bool:
        """Whether all units have the shapes that they had before the edit."""
        return not any(unit.is_reshaped for unit in self.units)

    def copy(self) -> "PlanDraft":
        """A copy that shares nothing that an edit changes."""
        units = [
            dataclasses.replace(
                unit, parallelism=dict(unit.parallelism), layers=list(unit.layers), policies=list(unit.policies)
            )
            for unit in self.units
        ]
        return dataclasses.replace(self, units=units)

    def figures(self) -> dict[tuple[str, str], Any]:
        """All that an edit can change, by the unit's name (empty for the step) and the name of the field."""
        figures: dict[tuple[str, str], Any] = {}
        for unit in self.units:
            values = unit.parallelism | {
                "pp": unit.pp,
                "layers": tuple(unit.layers),
                "recompute": tuple(unit.policies),
                "phase_rows": unit.phase_rows,
                "executor": unit.executor,
                "extra_microbatches": unit.extra_microbatches,
                "replica_of_microbatch": unit.replica_of_microbatch,
            }
            figures |= {(unit.name, name): value for name, value in values.items()}
        step = {"microbatches": self.microbatches, "schedule": self.schedule, "stage seconds": self.given_seconds}
        return figures | {("", name): value for name, value in step.items()}


def draft_of(plan: Plan) -> PlanDraft:
    """The draft of a plan that nothing has changed."""
    hints = [unit.schedule_hints for unit in plan.units]
    given: GivenSeconds = "seconds" if any(hint.forward_seconds for hint in hints) else "none"
    if any(hint.forward_communication or hint.backward_communication for hint in hints):
        given = "communication"
    return PlanDraft(plan, [draft_of_unit(unit) for unit in plan.units], plan.microbatches, plan.schedule, given)


def draft_of_unit(unit: UnitPlan) -> UnitDraft:
    """The draft of a unit."""
    return UnitDraft(
        original=unit,
        parallelism={name: getattr(unit.parallelism, name) for name in PARALLELISM},
        layers=list(unit.layers),
        policies=[policy for stage in range(unit.stage_count) for policy in unit.layer_recompute(stage)],
        phase_rows=unit.phase_rows,
        executor=unit.executor,
        extra_microbatches=unit.schedule_hints.extra_microbatches,
        replica_of_microbatch=unit.schedule_hints.replica_of_microbatch,
    )
