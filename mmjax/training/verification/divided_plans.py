"""Plans made of a division of every module: parallelism and recomputation of encoders, backbone and generators."""

import dataclasses
import enum
import itertools
from collections.abc import Mapping, Sequence

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import row_values
from data.packing.phases.phase_rows import RowValues
from sharding.axes import ContextTransfer
from sharding.expert_transfer import ExpertTransferChoice
from sharding.plans.plan import Plan
from sharding.plans.recompute_text import recompute_text
from sharding.plans.unit_checks import row_chunks
from sharding.plans.unit_plan import CollectivesName, ExecutorName, PlanError, UnitPlan
from sharding.specs.layer import RecomputePolicy
from sharding.specs.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph


@dataclasses.dataclass(frozen=True)
class GlobalRows:
    """The rows of a global batch.

    Attributes:
        count: Number of rows.
        values: By module, what a row holds of its inputs.
        positions: By encoder and backbone, the positions of a row in its layers.
    """

    count: int
    values: Mapping[str, RowValues] = dataclasses.field(default_factory=dict)
    positions: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_data(cls, model: ModelConfig, data: DataConfig) -> "GlobalRows":
        """The rows that a data configuration makes for a model."""
        arrays = global_batch_spec(data, model).arrays
        positions = {module: of["segments"].shape[1] for module, of in arrays.items() if "segments" in of}
        return cls(data.rows, row_values(model, arrays), positions)

    def sufficient_capacity(self, module: str, microbatches: int, rows: int) -> int:
        """The capacity of a module's own rows with which any microbatch fits."""
        return self.values[module].count * -(-(self.count // microbatches) // rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How one module is divided, its rows, and how many microbatches it may hold where a step has so many.

    As in `UnitPlan`; successive layers have the policies of `recompute` by turns; `two_capacities` says whether rows
    of its own have half of their capacity too.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    recompute: tuple[RecomputePolicy, ...] = ("none",)
    chunks: int = 1
    cp: int = 1
    context_transfer: ContextTransfer = "ring"
    ep: int = 1
    expert_transfer: ExpertTransferChoice = "cheaper"
    fsdp: int = 1
    collectives: CollectivesName = "reduce"
    extra_in_flight: int = 0
    rows: int = 0
    two_capacities: bool = False
    copies: int = 1
    executor: ExecutorName = "dispatched"

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.copies * self.dp * self.cp * self.tp * self.pp


UNDIVIDED = Parallelism()


class ModuleRole(enum.IntEnum):
    """What a module is to the model."""

    ENCODER = 0
    BACKBONE = 1
    GENERATOR = 2


def module_roles(graph: ModuleGraph) -> dict[str, ModuleRole]:
    """The role of every module by name."""

    def role(module: ModuleSpec) -> ModuleRole:
        if module.is_backbone:
            return ModuleRole.BACKBONE
        return ModuleRole.GENERATOR if graph.backbone.name in module.inputs else ModuleRole.ENCODER

    return {module.name: role(module) for module in graph.modules}


def uneven_layers(layers: int, stages: int) -> tuple[int, ...]:
    """One layer a stage and the rest on the last stage; zero there if there are too few, which a unit refuses."""
    return (*[1] * (stages - 1), max(0, layers - stages + 1))


def plan_by_module(
    graph: ModuleGraph,
    rows: GlobalRows,
    parallelism: Sequence[Parallelism],
    microbatches: int = 1,
    schedule: str = "1f1b",
    together: bool = False,
) -> Plan:
    """A plan with every module a unit of its own.

    Args:
        graph: The modules.
        rows: Of the global batch.
        parallelism: Of every encoder, of the backbone and of every generator.
        microbatches: As in `Plan`.
        schedule: As in `Plan`.
        together: Whether all units start at device 0. Otherwise each starts after the last device of the one before,
            generators first: the modules that take longest to compile then have the same devices in many layouts, and
            the compilation cache has their programs.
    """
    roles = module_roles(graph)
    divided = {}
    for module in graph.modules:
        of_role = parallelism[roles[module.name]]
        divided[module.name] = of_role if module.divisible else dataclasses.replace(of_role, pp=1, chunks=1)
        if of_role.cp > 1:
            divided[module.name] = _divided_positions(module, divided[module.name], rows)
    device_order = (ModuleRole.GENERATOR, ModuleRole.ENCODER, ModuleRole.BACKBONE)
    starts, first_free = {}, 0
    for name in sorted(graph.names, key=lambda name: device_order.index(roles[name])):
        starts[name] = first_free
        first_free += 0 if together else divided[name].size
    units = []
    for module in graph.modules:
        division, start = divided[module.name], starts[module.name]
        stages = division.pp * division.chunks
        layers = uneven_layers(module.layer_count, stages)
        if division.executor == "compiled" and module.layer_count % stages == 0:
            layers = (module.layer_count // stages,) * stages
        units.append(
            UnitPlan(
                name=module.name,
                modules=(module.name,),
                devices=tuple(range(start, start + division.size)),
                dp=division.dp,
                tp=division.tp,
                layers=layers,
                recompute=_recompute(division.recompute, layers),
                chunks=division.chunks,
                cp=division.cp,
                context_transfer=division.context_transfer,
                ep=division.ep,
                expert_transfer=division.expert_transfer,
                fsdp=division.fsdp,
                collectives=division.collectives,
                extra_in_flight=min(division.extra_in_flight, microbatches * division.chunks - 1),
                rows=division.rows,
                capacities=_capacities(module.name, rows, microbatches, division),
                copies=division.copies,
                executor=division.executor,
            )
        )
    return Plan(tuple(units), microbatches, schedule)


def divides_positions(module: ModuleSpec, cp: int, tp: int, rows: GlobalRows) -> bool:
    """Whether context-parallel ranks, and tensor ranks between matmuls, divide the positions of a module's rows."""
    return cp == 1 or (module.supports_cp and rows.positions.get(module.name, 1) % (row_chunks(cp) * tp) == 0)


def _divided_positions(module: ModuleSpec, division: Parallelism, rows: GlobalRows) -> Parallelism:
    """The division with context-parallel ranks where a module has positions to divide.

    Raises:
        PlanError: The ranks do not divide the positions.
    """
    if not module.supports_cp:
        return dataclasses.replace(division, cp=1)
    if not divides_positions(module, division.cp, division.tp, rows):
        raise PlanError(
            f"two chunks for each of cp {division.cp} x tp {division.tp} ranks do not divide the "
            f"{rows.positions.get(module.name, 0)} positions of a row of {module.name}"
        )
    return division


def with_communication(plan: Plan) -> Plan:
    """The plan with seconds for every stage, half of which wait for collectives, so that `colocated` makes bundles."""

    def with_seconds(unit: UnitPlan) -> UnitPlan:
        forward, backward = (1.0,) * unit.stage_count, (2.0,) * unit.stage_count
        return dataclasses.replace(
            unit,
            forward_seconds=forward,
            backward_seconds=backward,
            forward_communication=tuple(seconds / 2 for seconds in forward),
            backward_communication=tuple(seconds / 2 for seconds in backward),
        )

    return dataclasses.replace(plan, units=tuple(map(with_seconds, plan.units)))


def _recompute(policies: Sequence[RecomputePolicy], layers: Sequence[int]) -> tuple[str, ...]:
    """The policies by turns, for the layers of each stage."""
    ends = itertools.accumulate(layers)
    return tuple(
        recompute_text([policies[layer % len(policies)] for layer in range(end - count, end)]) if count else "none"
        for count, end in zip(layers, ends, strict=True)
    )


def _capacities(module: str, rows: GlobalRows, microbatches: int, division: Parallelism) -> tuple[int, ...]:
    """The sufficient capacity of a module's rows and about half of it, which tensor ranks divide; or none."""
    if not division.two_capacities or module not in rows.values:
        return ()
    whole = rows.sufficient_capacity(module, microbatches, division.rows)
    multiple = rows.values[module].per_cell * division.tp * row_chunks(division.cp)
    half = whole // 2 // multiple * multiple
    return (half, whole) if half else (whole,)


def plan_with_chain(
    graph: ModuleGraph,
    chain: Sequence[str],
    division: Parallelism,
    first_layers: int,
    microbatches: int,
    schedule: str = "1f1b",
    tensor_ranks: Sequence[int] = (),
) -> Plan:
    """A plan with the modules of a chain in one unit, whose first stage has so many layers.

    Every other module is a unit on a device of its own.

    Args:
        graph: The modules.
        chain: Those of the chain.
        division: Of the chain; with `tensor_ranks`, its tp is that of one of them.
        first_layers: Layers of the first stage.
        microbatches: As in `Plan`.
        schedule: As in `Plan`.
        tensor_ranks: Of encoders, of the backbone and of generators, where they differ.
    """
    roles = module_roles(graph)
    total = sum(graph[name].layer_count for name in chain)
    layers = (first_layers, *uneven_layers(total - first_layers, division.pp * division.chunks - 1))
    others = [module for module in reversed(graph.modules) if module.name not in chain]
    units = [
        UnitPlan(name=module.name, modules=(module.name,), devices=(device,), layers=(module.layer_count,))
        for device, module in enumerate(others)
    ]
    units.append(
        UnitPlan(
            name="chain",
            modules=tuple(chain),
            devices=tuple(range(len(others), len(others) + division.size)),
            dp=division.dp,
            tp=division.tp,
            module_tp=tuple(tensor_ranks[roles[name]] for name in chain) if tensor_ranks else (),
            layers=layers,
            recompute=_recompute(division.recompute, layers),
            chunks=division.chunks,
            collectives=division.collectives,
        )
    )
    return Plan(tuple(units), microbatches, schedule)
