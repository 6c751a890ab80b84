"""One unit of a plan: a chain of modules on devices of its own, and how its stages and ranks divide it."""

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Literal, get_args

from configs.common.short_repr import short_repr
from sharding.plans.device_numbers import Devices, as_devices, highest, lowest
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan_error import PlanError
from sharding.plans.schedule_hints import ScheduleHints
from sharding.plans.text import bounds
from sharding.plans.text.device_ranges import parse_device_ranges
from sharding.plans.text.json_fields import FROM_TEXT, TextForm
from sharding.plans.text.recompute_text import layer_policies, read_recompute
from sharding.specs.layers.layer import RecomputePolicy

MOST_CAPACITIES = 4
"""Most capacities of a unit with rows of its own: as many programs are compiled for each of its stages."""

ExecutorName = Literal["dispatched", "compiled"]


@dataclasses.dataclass(frozen=True)
class UnitPlan:
    """A chain of modules on a submesh of its own.

    Attributes:
        name: Name of the unit.
        modules: Modules in chain order, each feeding the next.
        devices: Indices of pipeline_replicas * dp * cp * tp * pp devices: by pipeline replica, then by pipeline rank,
            then by data, context-parallel and tensor rank. Consecutive ones become a `range`.
        layers: How many layers of the chained modules each virtual stage owns, in chain order; pp * chunks numbers.
        parallelism: How its devices divide the work of every stage.
        recompute: Activation recomputation of the layers of each virtual stage: a policy (`none`, `selective`,
            `offload` or `full`), or counts of consecutive layers, such as `3 full, 5 none`; one entry is for all
            stages. What precedes a module's stack has the policy of its first layer, and what follows has the policy of
            its last.
        phase_rows: Rows of a microbatch in this unit, over which its items are dealt anew: of an encoder or generator
            in a unit of its own. 0 for the rows of the global batch, and samples stay in theirs.
        capacities: Capacities of such a row, ascending, in patches, frames or target images. A microbatch runs with the
            smallest that holds its items, all replicas alike, and one without items not at all. Empty for one that
            suffices for every batch: rows of the global batch fit as wholes.
        executor: How a step of the unit runs. `dispatched`: a program for each stage, microbatch, and forward or
            backward, in the order of the plan's schedule. `compiled`: one program a step, in which all pipeline ranks
            run in lockstep (`sharding.schedules.lockstep`), or one of forwards and one of backwards where generators
            come between; of a backbone alone, whose stages must be equal (`sharding.plans.compiled_units`).
        schedule_hints: Hints of a planner to the schedule about the unit.
    """

    name: str
    modules: tuple[str, ...]
    devices: Devices = dataclasses.field(metadata={FROM_TEXT: TextForm(parse_device_ranges, "0-3,8-11")})
    _: dataclasses.KW_ONLY
    layers: tuple[int, ...] = (1,)
    parallelism: Parallelism = Parallelism()
    recompute: tuple[str, ...] = ("none",)
    phase_rows: int = 0
    capacities: tuple[int, ...] = ()
    executor: ExecutorName = "dispatched"
    schedule_hints: ScheduleHints = ScheduleHints()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if not self.name or not self.modules or not self.layers:
            raise PlanError(f"unit {self.name!r}: a unit needs a name, at least one module and at least one stage")
        with self._named():
            object.__setattr__(self, "devices", as_devices(self.devices))
            self._check_bounds()
            self._check_phase_rows()
            self._check_stages()
            self._check_modules()
            self._check_devices()
            self._check_recompute()
            self._check_hints()
            if self.executor not in get_args(ExecutorName):
                raise PlanError(f"executor {self.executor!r}; choose from {', '.join(get_args(ExecutorName))}")

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Adds the unit's name to errors."""
        try:
            yield
        except PlanError as error:
            raise PlanError(f"unit {self.name}: {error}") from error

    def _check_bounds(self) -> None:
        for name in (self.name, *self.modules):
            if fault := bounds.name_fault(name):
                raise PlanError(fault)
        if self.stage_count > bounds.MAX_STAGES:
            raise PlanError(f"{self.stage_count} stages in layers; give at most {bounds.MAX_STAGES}")
        for key in ("layers", "phase_rows", "capacities"):
            if fault := bounds.excess(key, getattr(self, key)):
                raise PlanError(fault)

    def _check_stages(self) -> None:
        chunks = self.parallelism.chunks
        if self.stage_count % chunks:
            raise PlanError(
                f"{chunks} chunks a pipeline rank need a multiple of {chunks} entries in layers, not {self.stage_count}"
            )
        if min(self.layers) < 1:
            raise PlanError(f"layers {list(self.layers)}; every stage must own at least one")

    def _check_modules(self) -> None:
        module_tp = self.parallelism.module_tp
        if module_tp and len(module_tp) != len(self.modules):
            raise PlanError(f"module_tp {list(module_tp)} has {len(module_tp)} entries for {len(self.modules)} modules")

    def _check_devices(self) -> None:
        needed = self.parallelism.device_count(self.pp)
        if len(self.devices) != needed:
            raise PlanError(
                f"{self.parallelism.product(self.pp)} (stages in layers) needs {needed} devices, but it lists "
                f"{len(self.devices)}"
            )
        if not isinstance(self.devices, range) and len(set(self.devices)) != needed:
            repeated = next(device for device, count in collections.Counter(self.devices).items() if count > 1)
            raise PlanError(f"devices must differ, but {repeated} is listed more than once")
        for device in (lowest(self.devices), highest(self.devices)):
            if not 0 <= device < bounds.MAX_DEVICES:
                raise PlanError(f"there is no device {device}; they are 0 to {bounds.MAX_DEVICES - 1}")

    def _check_recompute(self) -> None:
        if len(self.recompute) == 1:
            object.__setattr__(self, "recompute", self.recompute * self.stage_count)
        if len(self.recompute) != self.stage_count:
            raise PlanError(
                f"recompute has {len(self.recompute)} entries for {self.stage_count} stages; give one for all, or one "
                "for each"
            )
        for stage in range(self.stage_count):
            try:
                read_recompute(self.recompute[stage], self.layers[stage])  # not a policy a layer: a file may name many
            except ValueError as error:
                raise PlanError(f"recompute of stage {stage}: {error}") from error

    def _check_hints(self) -> None:
        self.schedule_hints.check_replicas(self.parallelism.pipeline_replicas)
        for key in ("forward_seconds", "backward_seconds"):
            seconds = getattr(self.schedule_hints, key)
            if len(seconds) not in (0, self.stage_count):
                raise PlanError(
                    f"{key} has {len(seconds)} entries for {self.stage_count} stages; give one for each, or none"
                )

    def _check_phase_rows(self) -> None:
        if self.phase_rows < 0:
            raise PlanError(f"phase_rows is {self.phase_rows}; it must not be negative")
        capacities = list(self.capacities)
        if capacities and not self.phase_rows:
            raise PlanError(f"capacities {capacities} belong to rows of its own; set phase_rows too")
        if len(capacities) > MOST_CAPACITIES:
            raise PlanError(
                f"{len(capacities)} capacities; give at most {MOST_CAPACITIES}, because the programs of its stages are "
                "compiled for each"
            )
        if any(first >= second for first, second in itertools.pairwise((0, *capacities))):
            raise PlanError(f"capacities {capacities} must be positive and ascend")
        if self.phase_rows % self.parallelism.dp:
            raise PlanError(
                f"dp {self.parallelism.dp} does not divide its {self.phase_rows} phase_rows of a microbatch; use a "
                f"multiple of {self.parallelism.dp} rows"
            )

    def with_parallelism(self, **changes: Any) -> "UnitPlan":
        """The unit with other fields of its `Parallelism`."""
        return dataclasses.replace(self, parallelism=dataclasses.replace(self.parallelism, **changes))

    def with_hints(self, **changes: Any) -> "UnitPlan":
        """The unit with other `ScheduleHints`."""
        return dataclasses.replace(self, schedule_hints=dataclasses.replace(self.schedule_hints, **changes))

    def tensor_ranks_of(self, module: str) -> int:
        """Tensor-parallel ranks of each replica of one of its modules."""
        return self.parallelism.tensor_ranks(self.modules, module)

    def replicas_of(self, module: str) -> int:
        """Data-parallel replicas of one of its modules."""
        return self.parallelism.dp * self.parallelism.tp // self.tensor_ranks_of(module)

    def layer_recompute(self, stage: int) -> tuple[RecomputePolicy, ...]:
        """The recomputation policy of each layer of a virtual stage, in chain order."""
        return layer_policies(self.recompute[stage], self.layers[stage])

    def program_recompute(self, stage: int) -> tuple[RecomputePolicy, ...]:
        """The recomputation policy of each layer that the programs of a stage run."""
        stages = range(self.stage_count) if self.is_compiled else (stage,)
        return tuple(policy for number in stages for policy in self.layer_recompute(number))

    @property
    def stage_count(self) -> int:
        """Number of virtual stages: pp * chunks."""
        return len(self.layers)

    @property
    def pp(self) -> int:
        """Number of pipeline ranks: stages with devices of their own."""
        return self.stage_count // self.parallelism.chunks

    @property
    def is_compiled(self) -> bool:
        """Whether a step of the unit is one program, or one of forwards and one of backwards."""
        return self.executor == "compiled"

    @property
    def program_count(self) -> int:
        """Stages with programs of their own: the virtual stages, or one where a step of the unit is one program."""
        return 1 if self.is_compiled else self.stage_count

    def program_devices(self, stage: int, pipeline_replica: int) -> Devices:
        """The devices of the programs of a stage: by data rank, or by pipeline rank where a step is one program."""
        return self.devices if self.is_compiled else self.pipeline_replica_devices(stage, pipeline_replica)

    def rank_devices(self, rank: int) -> Devices:
        """The dp * cp * tp devices of a pipeline rank, `rank` being pipeline_replica * pp + stage % pp."""
        size = self.parallelism.rank_size
        return as_devices(self.devices[rank * size : (rank + 1) * size])

    def pipeline_replica_devices(self, stage: int, pipeline_replica: int) -> Devices:
        """The devices of a virtual stage in one pipeline replica, by data, context-parallel and tensor rank."""
        return self.rank_devices(pipeline_replica * self.pp + stage % self.pp)

    def stage_devices(self, stage: int) -> Devices:
        """The devices of a virtual stage: by pipeline replica, then by data, context-parallel and tensor rank."""
        replicas = range(self.parallelism.pipeline_replicas)
        parts = [self.pipeline_replica_devices(stage, replica) for replica in replicas]
        return parts[0] if len(parts) == 1 else as_devices(tuple(itertools.chain.from_iterable(parts)))

    def replica_of_microbatches(self, microbatches: int) -> tuple[int, ...]:
        """Which pipeline replica takes each of a step's microbatches."""
        replicas = self.parallelism.pipeline_replicas
        given = self.schedule_hints.replica_of_microbatch
        return given or tuple(number % replicas for number in range(microbatches))
