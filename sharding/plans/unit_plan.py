"""One unit of a plan: a chain of modules on devices of its own, and how its stages and ranks divide it."""

import collections
import dataclasses
import itertools
import math
from typing import Literal, NamedTuple, get_args

from configs.errors import UserError
from configs.short_repr import short_repr
from sharding.axes import CollectiveMatmul, ContextTransfer
from sharding.expert_transfer import ExpertTransferChoice
from sharding.plans import bounds
from sharding.plans.device_ranges import parse_device_ranges
from sharding.plans.json_fields import FROM_TEXT, TextForm
from sharding.plans.recompute_text import layer_policies, read_recompute
from sharding.specs.layer import RecomputePolicy

MOST_CAPACITIES = 4
"""Of a unit with rows of its own: as many programs are compiled for each of its stages."""

CollectivesName = Literal["reduce", "gather", "ring", "mosaic"]

ExecutorName = Literal["dispatched", "compiled"]


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


class PlanError(UserError):
    """A plan that cannot run; the message gives the reason and the remedy."""


@dataclasses.dataclass(frozen=True)
class UnitPlan:
    """A chain of modules on a submesh of its own.

    Attributes:
        name: Name of the unit.
        modules: Modules in chain order, each feeding the next.
        devices: Indices of copies * dp * cp * tp * pp devices: by copy, then by stage, then by data, context-parallel
            and tensor rank.
        dp: Data-parallel replicas of every stage.
        tp: Tensor-parallel ranks of every replica.
        module_tp: Tensor-parallel ranks of each module, where they differ; one of them has `tp`. All modules of a stage
            are on all its dp * tp devices, so that a module has dp * tp / its own ranks replicas (`replicas_of`), which
            divide the rows of a microbatch among them. Empty: all have `tp`.
        layers: How many layers of the chained modules each virtual stage owns, in chain order; pp * chunks numbers.
        recompute: Activation recomputation of the layers of each virtual stage: a policy (`none`, `selective`,
            `offload` or `full`), or counts of consecutive layers, such as `3 full, 5 none`; one entry is for all
            stages. What precedes a module's stack has the policy of its first layer, what follows that of its last.
        chunks: Virtual stages on the devices of each stage; virtual stage v is placed on those of stage v % pp
            (Narayanan et al., arXiv 2104.04473, section 2.2). Elsewhere a virtual stage is a stage like any other.
        cp: Context-parallel ranks of every replica, which divide the positions of its rows.
        context_transfer: How their attention reaches the positions of other ranks. `ring`: keys and values are sent
            around them (ring attention, arXiv 2310.01889). `all_to_all`: they trade positions for heads before
            attention, and back after it (DeepSpeed-Ulysses, arXiv 2309.14509); cp * tp must divide the heads.
        ep: Expert ranks: `ep` consecutive data-parallel replicas divide the experts of every layer that has some.
            They take no devices of their own.
        expert_transfer: How tokens get to the ranks of their experts: by `gather`, by `all_to_all`, or `cheaper`, which
            of the two moves less (`sharding.expert_transfer`).
        fsdp: Consecutive data-parallel replicas that divide weights and gradients among them (fully sharded data
            parallelism, ZeRO-3): a layer's weights are gathered whenever it computes, and its gradients scattered. 1:
            every replica holds whole weights for a step (ZeRO-1). Below dp, each group has a copy of the weights, and
            groups sum their gradients once a step. A multiple of `ep`, if above 1.
        collectives: What the tensor ranks do around split matmuls. `reduce`: every rank has all positions, and sums are
            all-reduced. `gather`: ranks divide the positions (sequence parallelism, arXiv 2205.05198), which are
            gathered before a matmul and scattered after one. `ring`: the same, in parts that are sent while others are
            multiplied. `mosaic`: the same by Hopper kernels where the unit has all devices of one process, else `ring`.
        extra_in_flight: How many microbatches each pipeline rank may hold at once beyond what the schedule needs; one
            that is in several of its chunks counts in each.
        forward_seconds: What a microbatch's forward takes on each virtual stage, by which `interleaved` and `colocated`
            order ops; only the proportions between stages matter. Empty: as long as any other op.
        backward_seconds: The same for the backward.
        forward_communication: Seconds among `forward_seconds` in which a virtual stage's devices only wait for
            collectives. Where they are given, `colocated` runs ops of other units in one program with the stage's, so
            that these compute meanwhile. Empty: none.
        backward_communication: The same for the backward.
        copies: Copies of the whole pipeline, each on devices of its own and with all weights, that take whole
            microbatches by turns (the encoder pipelines of Optimus, arXiv 2408.03505, section 4.1). Gradients are
            summed over all copies once a step; master weights and optimizer state are divided over them too.
        copy_of_microbatch: Which copy takes each microbatch of a step. Empty: microbatch i goes to copy i % copies.
        rows: Rows of a microbatch in this unit, over which its items are dealt anew: of an encoder or generator in a
            unit of its own. 0 for the rows of the global batch, and samples stay in theirs.
        capacities: What such a row holds, ascending: patches, frames or target images. A microbatch runs with the
            smallest that holds its items, all replicas alike, and one without items not at all. Empty for one that
            suffices for every batch: rows of the global batch fit as wholes.
        executor: How a step of the unit runs. `dispatched`: a program for each stage, microbatch, and forward or
            backward, in the order of the plan's schedule. `compiled`: one program a step, in which all pipeline ranks
            run in lockstep (`sharding.schedules.lockstep`), or one of forwards and one of backwards where generators
            come between; of a backbone alone, whose stages must be equal (`sharding.plans.compiled_units`).
    """

    name: str
    modules: tuple[str, ...]
    devices: tuple[int, ...] = dataclasses.field(metadata={FROM_TEXT: TextForm(parse_device_ranges, "0-3,8-11")})
    _: dataclasses.KW_ONLY
    dp: int = 1
    tp: int = 1
    module_tp: tuple[int, ...] = ()
    layers: tuple[int, ...] = (1,)
    recompute: tuple[str, ...] = ("none",)
    chunks: int = 1
    cp: int = 1
    context_transfer: ContextTransfer = "ring"
    ep: int = 1
    expert_transfer: ExpertTransferChoice = "cheaper"
    fsdp: int = 1
    collectives: CollectivesName = "reduce"
    extra_in_flight: int = 0
    forward_seconds: tuple[float, ...] = ()
    backward_seconds: tuple[float, ...] = ()
    forward_communication: tuple[float, ...] = ()
    backward_communication: tuple[float, ...] = ()
    copies: int = 1
    copy_of_microbatch: tuple[int, ...] = ()
    rows: int = 0
    capacities: tuple[int, ...] = ()
    executor: ExecutorName = "dispatched"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if not self.name or not self.modules or not self.layers:
            raise PlanError(f"unit {self.name!r}: a unit needs a name, at least one module and at least one stage")
        self._check_bounds()
        for key in ("dp", "tp", "chunks", "cp", "ep", "fsdp", "copies"):
            if getattr(self, key) < 1:
                raise PlanError(f"unit {self.name}: {key} is {getattr(self, key)}; it must be at least 1")
        self._check_phase_rows()
        if self.stage_count % self.chunks:
            raise PlanError(
                f"unit {self.name}: {self.chunks} chunks a pipeline rank need a multiple of {self.chunks} entries in "
                f"layers, not {self.stage_count}"
            )
        if min(self.layers) < 1:
            raise PlanError(f"unit {self.name}: layers {list(self.layers)}; every stage must own at least one")
        if self.dp % self.ep:
            raise PlanError(
                f"unit {self.name}: ep {self.ep} does not divide dp {self.dp}; the replicas divide the experts among "
                "them, so choose an ep that divides dp"
            )
        if self.fsdp > 1 and (self.dp % self.fsdp or self.fsdp % self.ep):
            raise PlanError(
                f"unit {self.name}: fsdp {self.fsdp} must divide dp {self.dp} and be a multiple of ep {self.ep}; the "
                "replicas divide the weights among them, so choose such a number, or 1 for whole weights"
            )
        self._check_module_tp()
        self._check_device_list()
        self._check_copies()
        if len(self.recompute) == 1:
            object.__setattr__(self, "recompute", self.recompute * self.stage_count)
        if len(self.recompute) != self.stage_count:
            raise PlanError(
                f"unit {self.name}: recompute has {len(self.recompute)} entries for {self.stage_count} stages; give "
                "one for all, or one for each"
            )
        self._check_recompute()
        if self.collectives not in TENSOR_COLLECTIVES:
            raise PlanError(
                f"unit {self.name}: collectives {self.collectives!r}; choose from {', '.join(TENSOR_COLLECTIVES)}"
            )
        literals = {
            "expert_transfer": ExpertTransferChoice,
            "context_transfer": ContextTransfer,
            "executor": ExecutorName,
        }
        for key, choices in literals.items():
            if getattr(self, key) not in get_args(choices):
                raise PlanError(
                    f"unit {self.name}: {key} {getattr(self, key)!r}; choose from {', '.join(get_args(choices))}"
                )
        if self.extra_in_flight < 0:
            raise PlanError(
                f"unit {self.name}: extra_in_flight is {self.extra_in_flight}; it must be at least 0, because with "
                "fewer microbatches in flight than the schedule needs its stages would wait for each other"
            )
        self._check_seconds()

    def _check_bounds(self) -> None:
        for name in (self.name, *self.modules):
            if fault := bounds.name_fault(name):
                raise PlanError(f"the plan's units: {fault}")
        if self.stage_count > bounds.MAX_STAGES:
            raise PlanError(f"unit {self.name}: {self.stage_count} stages in layers; give at most {bounds.MAX_STAGES}")
        for key in bounds.LARGEST:
            if fault := bounds.excess(key, getattr(self, key)):
                raise PlanError(f"unit {self.name}: {fault}")

    def _check_module_tp(self) -> None:
        if not self.module_tp:
            return
        given = f"unit {self.name}: module_tp {list(self.module_tp)}"
        if len(self.module_tp) != len(self.modules):
            raise PlanError(f"{given} has {len(self.module_tp)} entries for {len(self.modules)} modules")
        if min(self.module_tp) < 1:
            raise PlanError(f"{given} must be at least 1")
        if self.tp not in self.module_tp:
            raise PlanError(f"{given} does not contain tp {self.tp}; let tp be that of one of its modules")
        if len(set(self.module_tp)) == 1:
            raise PlanError(f"{given} is tp {self.tp} for all; leave module_tp out")
        together = math.lcm(*self.module_tp) * max(self.ep, self.fsdp)
        if self.dp * self.tp % together:
            sharing = (("ep", self.ep), ("fsdp", self.fsdp))
            experts = "".join(f" and {name} {size}" for name, size in sharing if size > 1)
            raise PlanError(
                f"{given}{experts} need a multiple of {together} devices a stage, but it has dp {self.dp} x tp "
                f"{self.tp} = {self.dp * self.tp}; choose another dp"
            )
        if self.cp > 1:
            raise PlanError(f"{given} with cp {self.cp}; only modules of equal tp can share a stage with cp above 1")

    def _check_copies(self) -> None:
        if self.copy_of_microbatch and self.copies == 1:
            raise PlanError(
                f"unit {self.name}: copy_of_microbatch is given, but copies is 1; set copies, or leave it out"
            )
        for microbatch, copy in enumerate(self.copy_of_microbatch):
            if not 0 <= copy < self.copies:
                raise PlanError(
                    f"unit {self.name}: copy_of_microbatch gives microbatch {microbatch} to copy {copy}, but its "
                    f"{self.copies} copies are 0 to {self.copies - 1}"
                )
        if self.copy_of_microbatch and len(set(self.copy_of_microbatch)) < self.copies:
            idle = min(set(range(self.copies)) - set(self.copy_of_microbatch))
            raise PlanError(
                f"unit {self.name}: copy_of_microbatch gives copy {idle} of {self.copies} no microbatch; use fewer "
                "copies"
            )

    def _check_recompute(self) -> None:
        for stage in range(self.stage_count):
            try:
                read_recompute(self.recompute[stage], self.layers[stage])  # not a policy a layer: a file may name many
            except ValueError as error:
                raise PlanError(f"unit {self.name}: recompute of stage {stage}: {error}") from error

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
        self._check_communication()

    def _check_communication(self) -> None:
        for kind in ("forward", "backward"):
            waits, seconds = getattr(self, f"{kind}_communication"), getattr(self, f"{kind}_seconds")
            if len(waits) not in (0, len(seconds)):
                raise PlanError(
                    f"unit {self.name}: {kind}_communication has {len(waits)} entries for {len(seconds)} of "
                    f"{kind}_seconds; give one for each, or none"
                )
            for stage, (wait, total) in enumerate(zip(waits, seconds, strict=False)):
                if not 0 <= wait <= total:
                    raise PlanError(
                        f"unit {self.name}: {kind}_communication of stage {stage} is {wait}; it must be from 0 to its "
                        f"{kind}_seconds, {total}"
                    )

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
        copies = f"copies {self.copies} x " if self.copies > 1 else ""
        sequence = f" x cp {self.cp}" if self.cp > 1 else ""
        sizes = f"{copies}dp {self.dp}{sequence} x tp {self.tp} x pp {self.pp}"
        needed = self.copies * self.dp * self.replica_size * self.pp
        if len(self.devices) != needed:
            raise PlanError(
                f"unit {self.name}: {sizes} (stages in layers) needs {needed} devices, but it lists {len(self.devices)}"
            )
        if len(set(self.devices)) != needed:
            repeated = next(device for device, count in collections.Counter(self.devices).items() if count > 1)
            raise PlanError(f"unit {self.name}: devices must differ, but {repeated} is listed more than once")
        for device in (min(self.devices), max(self.devices)):
            if not 0 <= device < bounds.MAX_DEVICES:
                raise PlanError(
                    f"unit {self.name}: there is no device {device}; they are 0 to {bounds.MAX_DEVICES - 1}"
                )

    @property
    def replica_size(self) -> int:
        """Devices of one replica of a stage: cp * tp."""
        return self.cp * self.tp

    def tensor_ranks_of(self, module: str) -> int:
        """Tensor-parallel ranks of each replica of one of its modules."""
        return self.module_tp[self.modules.index(module)] if self.module_tp else self.tp

    def replicas_of(self, module: str) -> int:
        """Data-parallel replicas of one of its modules."""
        return self.dp * self.tp // self.tensor_ranks_of(module)

    @property
    def shared_replicas(self) -> int:
        """Groups of devices of a stage that hold whole replicas of every module: dp, unless modules differ in tp."""
        return self.dp * self.tp // math.lcm(self.tp, *self.module_tp)

    def layer_recompute(self, stage: int) -> tuple[RecomputePolicy, ...]:
        """The recomputation policy of each layer of a virtual stage, in chain order."""
        return layer_policies(self.recompute[stage], self.layers[stage])

    def program_recompute(self, stage: int) -> tuple[RecomputePolicy, ...]:
        """The same of a stage with programs of its own."""
        stages = range(self.stage_count) if self.is_compiled else (stage,)
        return tuple(policy for each in stages for policy in self.layer_recompute(each))

    @property
    def stage_count(self) -> int:
        """Number of virtual stages: pp * chunks."""
        return len(self.layers)

    @property
    def pp(self) -> int:
        """Number of pipeline ranks: stages with devices of their own."""
        return self.stage_count // self.chunks

    @property
    def is_compiled(self) -> bool:
        """Whether a step of the unit is one program, or one of forwards and one of backwards."""
        return self.executor == "compiled"

    @property
    def program_count(self) -> int:
        """Stages with programs of their own: the virtual stages, or one where a step of the unit is one program."""
        return 1 if self.is_compiled else self.stage_count

    def program_devices(self, stage: int, copy: int) -> tuple[int, ...]:
        """The devices of the programs of a stage in one copy: by data rank, or by pipeline rank in one program."""
        return self.devices if self.is_compiled else self.copy_devices(stage, copy)

    def rank_devices(self, rank: int) -> tuple[int, ...]:
        """The dp * cp * tp devices of a pipeline rank of a copy, `rank` being copy * pp + stage % pp."""
        size = self.dp * self.replica_size
        return self.devices[rank * size : (rank + 1) * size]

    def copy_devices(self, stage: int, copy: int) -> tuple[int, ...]:
        """The devices of a virtual stage of one copy, by data, context-parallel and tensor rank."""
        return self.rank_devices(copy * self.pp + stage % self.pp)

    def stage_devices(self, stage: int) -> tuple[int, ...]:
        """The devices of a virtual stage of all copies: by copy, then by data, context-parallel and tensor rank."""
        return tuple(device for copy in range(self.copies) for device in self.copy_devices(stage, copy))

    def microbatch_copies(self, microbatches: int) -> tuple[int, ...]:
        """Which copy takes each of a step's microbatches."""
        return self.copy_of_microbatch or tuple(number % self.copies for number in range(microbatches))
