"""One unit of a plan: a chain of modules on devices of its own, its stages, and the checks that a model fits it."""

import collections
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from configs.errors import UserError
from sharding.axes import CollectiveMatmul
from sharding.plans.device_ranges import MAX_DEVICES, parse_device_ranges
from sharding.plans.json_fields import FROM_TEXT, TextForm
from sharding.specs.layer import RECOMPUTE_POLICIES, RecomputePolicy
from sharding.specs.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph

MOST_CAPACITIES = 4
"""Of a unit with rows of its own: as many programs are compiled for each of its stages."""

CollectivesName = Literal["reduce", "gather", "ring", "mosaic"]


class TensorCollectives(NamedTuple):
    """What the tensor ranks do around split matmuls.

    Attributes:
        sequence_parallel: Whether they divide the positions of a row between split matmuls.
        implementation: How the gathers and scatters around the matmuls are done.
    """

    sequence_parallel: bool
    implementation: CollectiveMatmul


TENSOR_COLLECTIVES: dict[CollectivesName, TensorCollectives] = {
    "reduce": TensorCollectives(False, "reference"),
    "gather": TensorCollectives(True, "reference"),
    "ring": TensorCollectives(True, "ring"),
    "mosaic": TensorCollectives(True, "mosaic"),
}
"""By the name that a plan gives (`UnitPlan.collectives`)."""


class LayerRun(NamedTuple):
    """Consecutive layers of one module on a stage: from `first` up to `last`, which is excluded."""

    module: str
    first: int
    last: int


class PlanError(UserError):
    """A plan that cannot run; the message gives the reason and the remedy."""


@dataclasses.dataclass(frozen=True)
class UnitPlan:
    """A chain of modules on a submesh of its own.

    Attributes:
        name: Name of the unit.
        modules: Modules in chain order, each feeding the next.
        devices: Indices of dp * cp * tp * pp devices: by stage, then by data, context-parallel and tensor rank.
        dp: Data-parallel replicas of every stage.
        tp: Tensor-parallel ranks of every replica.
        layers: How many layers of the chained modules each virtual stage owns, in chain order; pp * chunks numbers.
        recompute: Activation recomputation policy of each virtual stage: `none`, `selective` or `full`.
        chunks: Virtual stages on the devices of each stage; virtual stage v is placed on those of stage v % pp
            (Narayanan et al., arXiv 2104.04473, section 2.2). Elsewhere a virtual stage is a stage like any other.
        cp: Context-parallel ranks of every replica, which divide its tokens; keys and values are sent around them
            (ring attention, arXiv 2310.01889).
        ep: Expert ranks: `ep` consecutive data-parallel replicas divide the experts of every layer that has some.
            They take no devices of their own.
        collectives: What the tensor ranks do around split matmuls. `reduce`: every rank has all positions, and sums are
            all-reduced. `gather`: ranks divide the positions (sequence parallelism, arXiv 2205.05198), which are
            gathered before a matmul and scattered after one. `ring`: the same, in parts that are sent while others are
            multiplied. `mosaic`: the same by Hopper kernels where the unit has all devices of one process, else `ring`.
        extra_in_flight: How many microbatches each pipeline rank may hold at once beyond what the schedule needs; one
            that is in several of its chunks counts in each.
        forward_seconds: What a microbatch's forward takes on each virtual stage, by which `interleaved` orders ops;
            only the proportions between stages matter. Empty: as long as any other op.
        backward_seconds: The same for the backward.
        rows: Rows of a microbatch in this unit, over which its items are dealt anew: of an encoder or generator in a
            unit of its own. 0 for the rows of the global batch, and samples stay in theirs.
        capacities: What such a row holds, ascending: patches, frames or target images. A microbatch runs with the
            smallest that holds its items, all replicas alike, and one without items not at all. Empty for one that
            suffices for every batch: rows of the global batch fit as wholes.
    """

    name: str
    modules: tuple[str, ...]
    devices: tuple[int, ...] = dataclasses.field(metadata={FROM_TEXT: TextForm(parse_device_ranges, "0-3,8-11")})
    _: dataclasses.KW_ONLY
    dp: int = 1
    tp: int = 1
    layers: tuple[int, ...] = (1,)
    recompute: tuple[RecomputePolicy, ...] = ("none",)
    chunks: int = 1
    cp: int = 1
    ep: int = 1
    collectives: CollectivesName = "reduce"
    extra_in_flight: int = 0
    forward_seconds: tuple[float, ...] = ()
    backward_seconds: tuple[float, ...] = ()
    rows: int = 0
    capacities: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.name or not self.modules or not self.layers:
            raise PlanError(f"unit {self.name!r}: a unit needs a name, at least one module and at least one stage")
        for key in ("dp", "tp", "chunks", "cp", "ep"):
            if getattr(self, key) < 1:
                raise PlanError(f"unit {self.name}: {key} is {getattr(self, key)}; it must be at least 1")
        self._check_phase_rows()
        if self.stage_count % self.chunks:
            raise PlanError(
                f"unit {self.name}: {self.chunks} chunks a stage need a multiple of {self.chunks} entries in layers, "
                f"not {self.stage_count}"
            )
        if min(self.layers) < 1:
            raise PlanError(f"unit {self.name}: layers {list(self.layers)}; every stage must own at least one")
        if self.dp % self.ep:
            raise PlanError(
                f"unit {self.name}: ep {self.ep} does not divide dp {self.dp}; the replicas divide the experts among "
                "them, so choose an ep that divides dp"
            )
        self._check_device_list()
        if len(self.recompute) != self.stage_count:
            raise PlanError(
                f"unit {self.name}: recompute has {len(self.recompute)} entries for {self.stage_count} stages"
            )
        for policy in self.recompute:
            if policy not in RECOMPUTE_POLICIES:
                raise PlanError(f"unit {self.name}: recompute {policy!r}; choose from {', '.join(RECOMPUTE_POLICIES)}")
        if self.collectives not in TENSOR_COLLECTIVES:
            raise PlanError(
                f"unit {self.name}: collectives {self.collectives!r}; choose from {', '.join(TENSOR_COLLECTIVES)}"
            )
        if self.extra_in_flight < 0:
            raise PlanError(
                f"unit {self.name}: extra_in_flight is {self.extra_in_flight}; it must be at least 0, because with "
                "fewer microbatches in flight than the schedule needs its stages would wait for each other"
            )
        self._check_seconds()

    def _check_seconds(self) -> None:
        for key in ("forward_seconds", "backward_seconds"):
            seconds = getattr(self, key)
            if len(seconds) not in (0, self.stage_count):
                raise PlanError(
                    f"unit {self.name}: {key} has {len(seconds)} entries for {self.stage_count} stages; give one for "
                    "each, or none"
                )
            if not all(math.isfinite(value) and value >= 0 for value in seconds):
                raise PlanError(f"unit {self.name}: {key} {list(seconds)} must be finite and not negative")
        if bool(self.forward_seconds) != bool(self.backward_seconds):
            raise PlanError(f"unit {self.name}: give both forward_seconds and backward_seconds, or neither")

    def _check_phase_rows(self) -> None:
        if self.rows < 0:
            raise PlanError(f"unit {self.name}: rows is {self.rows}; it must not be negative")
        capacities = list(self.capacities)
        if capacities and not self.rows:
            raise PlanError(f"unit {self.name}: capacities {capacities} are those of rows of its own; set rows too")
        if len(capacities) > MOST_CAPACITIES:
            raise PlanError(
                f"unit {self.name}: {len(capacities)} capacities; give at most {MOST_CAPACITIES}, because the programs "
                "of its stages are compiled for each"
            )
        if any(first >= second for first, second in itertools.pairwise((0, *capacities))):
            raise PlanError(f"unit {self.name}: capacities {capacities} must be positive and ascend")
        if self.rows % self.dp:
            raise PlanError(
                f"unit {self.name}: dp {self.dp} does not divide its {self.rows} rows of a microbatch; use a multiple "
                f"of {self.dp} rows"
            )

    def _check_device_list(self) -> None:
        sequence = f" x cp {self.cp}" if self.cp > 1 else ""
        needed = self.dp * self.replica_size * self.pp
        if len(self.devices) != needed:
            raise PlanError(
                f"unit {self.name}: dp {self.dp}{sequence} x tp {self.tp} x pp {self.pp} (stages in layers) needs "
                f"{needed} devices, but it lists {len(self.devices)}"
            )
        if len(set(self.devices)) != needed:
            repeated = next(device for device, count in collections.Counter(self.devices).items() if count > 1)
            raise PlanError(f"unit {self.name}: devices must differ, but {repeated} is listed more than once")
        for device in (min(self.devices), max(self.devices)):
            if not 0 <= device < MAX_DEVICES:
                raise PlanError(f"unit {self.name}: there is no device {device}; they are 0 to {MAX_DEVICES - 1}")

    @property
    def replica_size(self) -> int:
        """Devices of one replica of a stage: cp * tp."""
        return self.cp * self.tp

    @property
    def stage_count(self) -> int:
        """Number of virtual stages: pp * chunks."""
        return len(self.layers)

    @property
    def pp(self) -> int:
        """Number of pipeline ranks: stages with devices of their own."""
        return self.stage_count // self.chunks

    def stage_devices(self, stage: int) -> tuple[int, ...]:
        """The dp * cp * tp devices of a virtual stage, by data, context-parallel and tensor rank."""
        size = self.dp * self.replica_size
        first = stage % self.pp * size
        return self.devices[first : first + size]


def stage_layers(unit: UnitPlan, graph: ModuleGraph) -> tuple[tuple[LayerRun, ...], ...]:
    """For every virtual stage, the runs of layers that it owns, in chain order.

    Raises PlanError if the layers do not add up, or a stage boundary cuts a module that must be on one stage.
    """
    modules = [graph[name] for name in unit.modules]
    most_stages = sum(module.layer_count if module.divisible else 1 for module in modules)
    indivisible = [module.name for module in modules if not module.divisible]
    if unit.stage_count > most_stages and indivisible:
        raise PlanError(
            f"unit {unit.name} has {unit.stage_count} stages, but {' > '.join(unit.modules)} can be cut into at most "
            f"{most_stages}: {', '.join(indivisible)} is one stage, because the skips of a U-Net join its first blocks "
            "to its last; use data or tensor parallelism there"
        )
    total = sum(module.layer_count for module in modules)
    if sum(unit.layers) != total:
        counts = " + ".join(f"{module.name} {module.layer_count}" for module in modules)
        raise PlanError(
            f"unit {unit.name}: layers {list(unit.layers)} add up to {sum(unit.layers)}, "
            f"but its modules have {total} ({counts})"
        )
    ends = list(itertools.accumulate(unit.layers))
    stages: list[list[LayerRun]] = [[] for _ in ends]
    offset = 0
    for module in modules:
        for stage, end in enumerate(ends):
            first = max(end - unit.layers[stage], offset)
            last = min(end, offset + module.layer_count)
            if first < last:
                stages[stage].append(LayerRun(module.name, first - offset, last - offset))
        owners = [stage for stage, runs in enumerate(stages) if any(run.module == module.name for run in runs)]
        if not module.divisible and len(owners) > 1:
            raise PlanError(
                f"unit {unit.name}: layers {list(unit.layers)} put {module.name} on stages {owners}, but it is one "
                f"stage; let one stage own all its {module.layer_count} layers"
            )
        offset += module.layer_count
    return tuple(map(tuple, stages))


def check_unit(unit: UnitPlan, graph: ModuleGraph, devices: int) -> None:
    """Raises PlanError if a unit cannot run: its devices, its chain, its layers, or what its ranks divide.

    Args:
        unit: The unit.
        graph: The model's modules.
        devices: Number of devices there are.
    """
    _check_devices(unit, devices)
    _check_chain(unit, graph)
    stage_layers(unit, graph)
    _check_ranks(unit, graph)
    if unit.rows and (len(unit.modules) > 1 or any(graph[name].is_backbone for name in unit.modules)):
        raise PlanError(
            f"unit {unit.name} holds {', '.join(unit.modules)} and has rows of its own; only a unit of one encoder or "
            "one generator can"
        )


def _check_devices(unit: UnitPlan, devices: int) -> None:
    if max(unit.devices) >= devices:
        raise PlanError(
            f"unit {unit.name} needs device {max(unit.devices)}, but there are {devices} devices "
            f"(0 to {devices - 1}); use fewer, or start more"
        )


def _check_chain(unit: UnitPlan, graph: ModuleGraph) -> None:
    for source, target in itertools.pairwise(unit.modules):
        if source not in graph[target].inputs:
            raise PlanError(
                f"unit {unit.name}: {source} does not feed {target}, so they are no chain; "
                "give each a unit of its own (units may share devices)"
            )
    for position, target in enumerate(unit.modules):
        for source in unit.modules[: max(position - 1, 0)]:
            if source in graph[target].inputs:
                raise PlanError(
                    f"unit {unit.name}: {source} feeds {target} past {unit.modules[position - 1]}, but a stage hands "
                    f"on the activation of one module only; give {target} a unit of its own (units may share devices)"
                )


def _check_ranks(unit: UnitPlan, graph: ModuleGraph) -> None:
    for name in unit.modules:
        for what, size in graph[name].tensor_splits:
            if size % unit.tp:
                raise PlanError(
                    f"unit {unit.name}: tp {unit.tp} does not divide {what} = {size} of {name}; "
                    "choose a tp that divides it, or another architecture"
                )
    check_cp_and_ep(f"unit {unit.name}", [graph[name] for name in unit.modules], unit.cp, unit.ep)


def check_cp_and_ep(where: str, modules: Sequence[ModuleSpec], cp: int, ep: int) -> None:
    """Raises PlanError if a chain of modules has no sequence or no experts to divide, or `ep` does not divide them.

    Args:
        where: Names the unit or the setting in messages.
        modules: Modules of one unit.
        cp: Context-parallel ranks of a replica.
        ep: Expert ranks.
    """
    for module in modules:
        if cp > 1 and not module.supports_cp:
            raise PlanError(f"{where}: cp {cp}, but {module.name} has no sequence to divide; leave cp at 1 there")
        if module.expert_count % ep:
            raise PlanError(
                f"{where}: ep {ep} does not divide the {module.expert_count} experts of {module.name}; choose an ep "
                "that divides them"
            )
    if ep > 1 and not any(module.expert_count for module in modules):
        names = ", ".join(module.name for module in modules)
        raise PlanError(f"{where}: ep {ep}, but no layer of {names} has experts; leave ep at 1")
