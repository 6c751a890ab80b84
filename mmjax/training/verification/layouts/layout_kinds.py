"""Kinds of layouts that `python -m mmjax.verify` compares, which make plans from divisions, the most divided first.

`layout_table.py` lists them.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

from configs.optimizer import MomentDtype, OptimizerConfig, StateMemory, moment_dtype, with_moment_dtype
from mmjax.training.verification.layouts.divided_plans import (
    GlobalRows,
    ModuleDivision,
    ModuleRole,
    module_roles,
    plan_by_module,
    plan_with_chain,
    with_communication,
)
from mmjax.training.verification.layouts.precisions import Precision
from sharding.plans.plan import Plan, single_device_plan
from sharding.plans.plan_error import PlanError
from sharding.specs.modules import ModuleGraph


@dataclasses.dataclass(frozen=True)
class NamedLayout:
    """A layout to compare with the reference.

    Attributes:
        name: Its parallelism in words, or the name of its plan file.
        plan: The placement of the modules.
        transport: Transport of hops (`sharding.runtime.hops`); empty for the configured transport.
        attention: Implementation of `pallas_kernels.packed_attention`; empty to choose it by shapes and devices.
        precision: The precision in which it is compared.
        moment_dtype: Type in which moments are stored; None for the configured type.
        state_memory: Where master weights and moments lie; None for the configured memory.
    """

    name: str
    plan: Plan
    transport: str = ""
    attention: str = ""
    precision: Precision = "float32"
    moment_dtype: MomentDtype | None = None
    state_memory: StateMemory | None = None

    def optimizer(self, configured: OptimizerConfig) -> OptimizerConfig:
        """The configured optimizer with the layout's own settings."""
        return dataclasses.replace(
            configured,
            algorithm=with_moment_dtype(configured.algorithm, self.moment_dtype or moment_dtype(configured.algorithm)),
            state_memory=self.state_memory or configured.state_memory,
        )

    def across_processes(self) -> "NamedLayout":
        """Returns the layout for a run of several processes, between which `device_put` cannot send."""
        if self.transport != "device_put":
            return self
        name = self.name.replace("device_put", "ppermute")
        return dataclasses.replace(self, name=name, transport="ppermute")

    def in_precisions(self, precisions: Sequence[Precision]) -> "list[NamedLayout]":
        """Returns the layout in each precision, named by it if there are several."""
        if len(precisions) == 1:
            return [dataclasses.replace(self, precision=precisions[0])]
        return [dataclasses.replace(self, name=f"{self.name}, {each}", precision=each) for each in precisions]


Alternatives = Iterator[Callable[[], NamedLayout]]
"""Ways to make a layout of one kind, from the most divided on; making one raises PlanError if it is impossible."""

LayoutKind = Callable[[ModuleGraph, GlobalRows], Alternatives]


SEVERAL = (2, 3)
"""Numbers of microbatches. Swapped, dropped or double-counted microbatches show only where there are several, so
layouts have one only if nothing else is possible."""


def one_device(graph: ModuleGraph, _: GlobalRows) -> Alternatives:
    """Makes the layout with every module on device 0."""
    for m in (*SEVERAL, 1):
        yield lambda m=m: NamedLayout(
            f"one device, {m} microbatches", dataclasses.replace(single_device_plan(graph), microbatches=m)
        )


def all_alike(divisions: Sequence[ModuleDivision], microbatches: Sequence[int] = (*SEVERAL, 1)) -> LayoutKind:
    """Makes layouts in which every module is divided in the same way, on the same devices."""

    def alternatives(graph: ModuleGraph, rows: GlobalRows) -> Alternatives:
        for m, division in itertools.product(microbatches, divisions):
            name = f"all on the same devices, {describe_parallelism([division], m)}"
            yield lambda division=division, m=m, name=name: NamedLayout(
                name, plan_by_module(graph, rows, [division] * 3, m, together=True)
            )

    return alternatives


def each_its_own(
    *choices: Sequence[ModuleDivision],
    microbatches: Sequence[int] = SEVERAL,
    schedule: str = "1f1b",
    together: bool = False,
    transport: str = "",
    attention: str = "",
    bundled: bool = False,
) -> LayoutKind:
    """Makes layouts in which every module is divided its own way; a choice is (encoder, backbone, generator)."""

    def alternatives(graph: ModuleGraph, rows: GlobalRows) -> Alternatives:
        def make(divisions: Sequence[ModuleDivision], m: int) -> Plan:
            plan = plan_by_module(graph, rows, divisions, m, schedule, together)
            return with_communication(plan) if bundled else plan

        for m, divisions in itertools.product((*microbatches, 1), choices):
            words = [describe_parallelism(divisions, m)]
            words += [schedule] if schedule != "1f1b" else []
            words += ["sharing devices"] if together else []
            words += [transport] if transport else []
            words += [f"{attention} attention"] if attention else []
            words += ["in bundles"] if bundled else []
            name = ", ".join(words)
            yield lambda divisions=divisions, m=m, name=name: NamedLayout(
                name, make(divisions, m), transport, attention
            )

    return alternatives


def in_one_unit(
    roles_after_encoder: Sequence[ModuleRole],
    division: ModuleDivision,
    cut_in_encoder: bool,
    schedule: str = "1f1b",
    tensor_ranks: Sequence[int] = (),
) -> LayoutKind:
    """Makes layouts with the last encoder and all modules of some roles in one unit.

    The unit is cut after the first layer of one of them. `tensor_ranks` are the tensor ranks of the encoder, of the
    backbone and of generators, where they differ.
    """

    def alternatives(graph: ModuleGraph, rows: GlobalRows) -> Alternatives:
        roles = module_roles(graph)
        encoders = [name for name in graph.names if roles[name] is ModuleRole.ENCODER]
        if not encoders:
            yield _no_encoder
            return
        chain = [encoders[-1], *(name for name in graph.names if roles[name] in roles_after_encoder)]
        first = 1 if cut_in_encoder else graph[encoders[-1]].layer_count + 1
        for m in (4, *SEVERAL, 1):
            sizes = [tensor_ranks[roles[name]] for name in chain if tensor_ranks]
            ranks = division.parallelism.dp * division.parallelism.tp
            divisions = [division.with_parallelism(dp=ranks // size, tp=size) for size in sizes]
            words = f"{' > '.join(chain)} in one unit, {describe_parallelism(divisions or [division], m)}"
            yield lambda m=m, name=f"{words}, first stage {first} layers": NamedLayout(
                name, plan_with_chain(graph, chain, division, first, m, schedule, tensor_ranks)
            )

    return alternatives


def with_optimizer(kind: LayoutKind, moment_dtype: MomentDtype, state_memory: StateMemory) -> LayoutKind:
    """Makes the layouts of a kind, with moments of a type and optimizer state in a memory."""

    def alternatives(graph: ModuleGraph, rows: GlobalRows) -> Alternatives:
        def make(without: Callable[[], NamedLayout]) -> NamedLayout:
            layout = without()
            name = f"{layout.name}, moments in {moment_dtype} on the {state_memory}"
            return dataclasses.replace(layout, name=name, moment_dtype=moment_dtype, state_memory=state_memory)

        return (functools.partial(make, without) for without in kind(graph, rows))

    return alternatives


def either(*kinds: LayoutKind) -> LayoutKind:
    """Makes the alternatives of one kind, then the alternatives of the others."""
    return lambda graph, rows: itertools.chain.from_iterable(kind(graph, rows) for kind in kinds)


def _no_encoder() -> NamedLayout:
    raise PlanError("the model has no encoder for a chain to begin with")


def describe_parallelism(divisions: Sequence[ModuleDivision], microbatches: int) -> str:
    """Describes divisions, such as `dp 3 -> 2 -> 1, 2 microbatches`; sizes that are 1 for all are left out."""
    words = []
    ranks = [of.parallelism for of in divisions]
    for name, default, sizes in (
        ("dp", 1, [of.dp for of in ranks]),
        ("tp", 1, [of.tp for of in ranks]),
        ("pp", 1, [of.pp for of in divisions]),
        ("cp", 1, [of.cp for of in ranks]),
        ("chunks", 1, [of.chunks for of in ranks]),
        ("ep", 1, [of.ep for of in ranks]),
        ("fsdp", 1, [of.fsdp for of in ranks]),
        ("rows", 0, [of.phase_rows for of in divisions]),
        ("pipeline replicas", 1, [of.pipeline_replicas for of in ranks]),
    ):
        if max(sizes) > default:
            words.append(f"{name} {' -> '.join(map(str, sizes))}")
    words += (
        ["all-to-all"] if any(division.parallelism.context_transfer == "all_to_all" for division in divisions) else []
    )
    transfers = dict.fromkeys(
        of.parallelism.expert_transfer for of in divisions if of.parallelism.expert_transfer != "auto"
    )
    words += [f"experts by {transfer}" for transfer in transfers]
    words += ["one program"] if any(division.executor == "compiled" for division in divisions) else []
    words += ["two capacities"] if any(division.two_capacities for division in divisions) else []
    extra = max(division.extra_microbatches for division in divisions)
    words += [f"{extra} extra in flight"] if extra else []
    policies = dict.fromkeys(division.recompute for division in divisions if division.recompute != ("none",))
    words += [f"{', '.join(by_turns)} recomputation" for by_turns in policies]
    collectives = dict.fromkeys(
        division.parallelism.collectives for division in divisions if division.parallelism.collectives != "all_reduce"
    )
    words += [f"{name} collectives" for name in collectives]
    return ", ".join([*words, f"{microbatches} microbatches"])
