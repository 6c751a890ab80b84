"""Plans from a division of every module: parallelism and recomputation of encoders, backbone and generators.

`layout_table.py` lists the divisions, `layout_kinds.py` fits them to a model; this makes the plans.
"""

import dataclasses
import enum
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import row_values
from data.packing.phases.phase_rows import RowValues
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.schedule_hints import ScheduleHints
from sharding.plans.text.recompute_text import recompute_text
from sharding.plans.unit_checks import row_chunks
from sharding.plans.unit_plan import ExecutorName, UnitPlan
from sharding.specs.layers.layer import RecomputePolicy
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph


@dataclasses.dataclass(frozen=True)
class GlobalRows:
    """The rows of a global batch.

    Attributes:
        count: Number of rows.
        values: Number of tokens, patches, frames or images of a row, by module.
        positions: Number of positions of a row in the layers of each encoder and the backbone.
    """

    count: int
    values: Mapping[str, RowValues] = dataclasses.field(default_factory=dict)
    positions: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_data(cls, model: ModelConfig, data: DataConfig) -> "GlobalRows":
        """Returns the rows that a data configuration makes for a model."""
        arrays = global_batch_spec(data, model).arrays
        positions = {module: of["segments"].shape[1] for module, of in arrays.items() if "segments" in of}
        return cls(data.rows, row_values(model, arrays), positions)

    def sufficient_capacity(self, module: str, microbatches: int, rows: int) -> int:
        """Returns the capacity of a module's own rows with which any microbatch fits."""
        return self.values[module].count * -(-(self.count // microbatches) // rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleDivision:
    """The division of one module, its rows, and the number of microbatches that it may hold if a step has that many.

    Attributes:
        parallelism: As in `UnitPlan`.
        pp: Pipeline ranks.
        recompute: Recomputation policies that successive layers have by turns.
        extra_microbatches: As in `ScheduleHints`.
        phase_rows: As in `UnitPlan`.
        two_capacities: Whether the module's own rows also have half of their capacity.
        executor: As in `UnitPlan`.
    """

    parallelism: Parallelism = Parallelism()
    pp: int = 1
    recompute: tuple[RecomputePolicy, ...] = ("none",)
    extra_microbatches: int = 0
    phase_rows: int = 0
    two_capacities: bool = False
    executor: ExecutorName = "dispatched"

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.parallelism.device_count(self.pp)

    @property
    def stage_count(self) -> int:
        """Number of virtual stages."""
        return self.pp * self.parallelism.chunks

    def with_parallelism(self, **changes: Any) -> "ModuleDivision":
        """Returns the division with other fields of its `Parallelism`."""
        return dataclasses.replace(self, parallelism=dataclasses.replace(self.parallelism, **changes))


UNDIVIDED = ModuleDivision()


def divided(**fields: Any) -> ModuleDivision:
    """Returns the division with some fields of `ModuleDivision` and of its `Parallelism`, whose names differ."""
    ranks = {field.name for field in dataclasses.fields(Parallelism)} & fields.keys()
    own = {name: value for name, value in fields.items() if name not in ranks}
    return ModuleDivision(parallelism=Parallelism(**{name: fields[name] for name in ranks}), **own)


class ModuleRole(enum.IntEnum):
    """The role of a module in the model: encoder, backbone or generator."""

    ENCODER = 0
    BACKBONE = 1
    GENERATOR = 2


def module_roles(graph: ModuleGraph) -> dict[str, ModuleRole]:
    """Returns the role of every module by name."""

    def role(module: ModuleSpec) -> ModuleRole:
        if module.is_backbone:
            return ModuleRole.BACKBONE
        return ModuleRole.GENERATOR if graph.backbone.name in module.inputs else ModuleRole.ENCODER

    return {module.name: role(module) for module in graph.modules}


def uneven_layers(layers: int, stages: int) -> tuple[int, ...]:
    """One layer for each stage and the rest on the last; 0 there if there are too few layers, which a unit refuses."""
    return (*[1] * (stages - 1), max(0, layers - stages + 1))


def plan_by_module(
    graph: ModuleGraph,
    rows: GlobalRows,
    parallelism: Sequence[ModuleDivision],
    microbatches: int = 1,
    schedule: str = "1f1b",
    together: bool = False,
) -> Plan:
    """Makes a plan in which every module is a unit of its own.

    Args:
        graph: The modules.
        rows: Rows of the global batch.
        parallelism: Division of every encoder, of the backbone and of every generator.
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
        whole = dataclasses.replace(of_role, pp=1).with_parallelism(chunks=1)
        divided[module.name] = of_role if module.divisible else whole
        if of_role.parallelism.cp > 1:
            divided[module.name] = _divided_positions(module, divided[module.name], rows)
    device_order = (ModuleRole.GENERATOR, ModuleRole.ENCODER, ModuleRole.BACKBONE)
    starts, first_free = {}, 0
    for name in sorted(graph.names, key=lambda name: device_order.index(roles[name])):
        starts[name] = first_free
        first_free += 0 if together else divided[name].size
    units = []
    for module in graph.modules:
        division, start = divided[module.name], starts[module.name]
        stages = division.stage_count
        layers = uneven_layers(module.layer_count, stages)
        if division.executor == "compiled" and module.layer_count % stages == 0:
            layers = (module.layer_count // stages,) * stages
        units.append(
            UnitPlan(
                name=module.name,
                modules=(module.name,),
                devices=tuple(range(start, start + division.size)),
                layers=layers,
                recompute=_recompute(division.recompute, layers),
                phase_rows=division.phase_rows,
                capacities=_capacities(module.name, rows, microbatches, division),
                executor=division.executor,
                parallelism=division.parallelism,
                schedule_hints=ScheduleHints(
                    extra_microbatches=min(division.extra_microbatches, microbatches * division.parallelism.chunks - 1)
                ),
            )
        )
    return Plan(tuple(units), microbatches, schedule)


def divides_positions(module: ModuleSpec, cp: int, tp: int, rows: GlobalRows) -> bool:
    """Whether context-parallel ranks, and tensor ranks between matmuls, divide the positions of a module's rows."""
    return cp == 1 or (module.supports_cp and rows.positions.get(module.name, 1) % (row_chunks(cp) * tp) == 0)


def _divided_positions(module: ModuleSpec, division: ModuleDivision, rows: GlobalRows) -> ModuleDivision:
    """Returns the division, with context-parallel ranks only where a module has positions to divide.

    Raises:
        PlanError: The ranks do not divide the positions.
    """
    if not module.supports_cp:
        return division.with_parallelism(cp=1)
    cp, tp = division.parallelism.cp, division.parallelism.tp
    if not divides_positions(module, cp, tp, rows):
        raise PlanError(
            f"two chunks for each of cp {cp} x tp {tp} ranks do not divide the "
            f"{rows.positions.get(module.name, 0)} positions of a row of {module.name}"
        )
    return division


def with_communication(plan: Plan) -> Plan:
    """Adds seconds to every stage, half of which wait for collectives, so that `colocated` makes bundles."""

    def with_seconds(unit: UnitPlan) -> UnitPlan:
        forward, backward = (1.0,) * unit.stage_count, (2.0,) * unit.stage_count
        return unit.with_hints(
            forward_seconds=forward,
            backward_seconds=backward,
            forward_communication=tuple(seconds / 2 for seconds in forward),
            backward_communication=tuple(seconds / 2 for seconds in backward),
        )

    return dataclasses.replace(plan, units=tuple(map(with_seconds, plan.units)))


def _recompute(policies: Sequence[RecomputePolicy], layers: Sequence[int]) -> tuple[str, ...]:
    """Assigns the policies by turns to the layers of each stage."""
    ends = itertools.accumulate(layers)
    return tuple(
        recompute_text([policies[layer % len(policies)] for layer in range(end - count, end)]) if count else "none"
        for count, end in zip(layers, ends, strict=True)
    )


def _capacities(module: str, rows: GlobalRows, microbatches: int, division: ModuleDivision) -> tuple[int, ...]:
    """Returns the sufficient capacity of a module's rows and about half of it, which tensor ranks divide; or none."""
    if not division.two_capacities or module not in rows.values:
        return ()
    whole = rows.sufficient_capacity(module, microbatches, division.phase_rows)
    multiple = rows.values[module].per_slot * division.parallelism.tp * row_chunks(division.parallelism.cp)
    half = whole // 2 // multiple * multiple
    return (half, whole) if half else (whole,)


def plan_with_chain(
    graph: ModuleGraph,
    chain: Sequence[str],
    division: ModuleDivision,
    first_layers: int,
    microbatches: int,
    schedule: str = "1f1b",
    tensor_ranks: Sequence[int] = (),
) -> Plan:
    """Makes a plan with the modules of a chain in one unit, whose first stage has `first_layers` layers.

    Every other module is a unit on a device of its own.

    Args:
        graph: The modules.
        chain: Names of the modules in the chain.
        division: Division of the chain; with `tensor_ranks`, its tp is one of them.
        first_layers: Layers of the first stage.
        microbatches: As in `Plan`.
        schedule: As in `Plan`.
        tensor_ranks: Tensor ranks of encoders, of the backbone and of generators, where they differ.
    """
    roles = module_roles(graph)
    total = sum(graph[name].layer_count for name in chain)
    layers = (first_layers, *uneven_layers(total - first_layers, division.stage_count - 1))
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
            layers=layers,
            recompute=_recompute(division.recompute, layers),
            parallelism=dataclasses.replace(
                division.parallelism,
                module_tp=tuple(tensor_ranks[roles[name]] for name in chain) if tensor_ranks else (),
            ),
        )
    )
    return Plan(tuple(units), microbatches, schedule)
