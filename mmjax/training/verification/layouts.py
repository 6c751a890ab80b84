"""The layouts that `python -m mmjax.verify` compares by default: every kind of division that a model allows."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from mmjax.training.verification.divided_plans import (
    UNDIVIDED,
    GlobalRows,
    ModuleRole,
    Parallelism,
    module_roles,
    plan_by_module,
    plan_with_chain,
)
from sharding.plans.plan import Plan, check_plan, single_device_plan
from sharding.plans.unit_plan import PlanError
from sharding.specs.modules import ModuleGraph


@dataclasses.dataclass(frozen=True)
class NamedLayout:
    """A layout to compare with the reference.

    Attributes:
        name: Its parallelism in words, or the name of its plan file.
        plan: The placement of the modules.
        transport: What sends the arrays of hops (`sharding.runtime.hops`); empty for the configuration's.
        attention: Implementation of `pallas_kernels.packed_attention`; empty for the one that suits shapes and devices.
        dtype: Compute precision.
    """

    name: str
    plan: Plan
    transport: str = ""
    attention: str = ""
    dtype: str = "float32"

    def across_processes(self) -> "NamedLayout":
        """The layout for a run of several processes, between which `device_put` cannot send."""
        if self.transport != "device_put":
            return self
        name = self.name.replace("device_put", "ppermute")
        return dataclasses.replace(self, name=name, transport="ppermute")

    def in_precisions(self, dtype: str) -> "list[NamedLayout]":
        """The layout in float32, whose tolerances are narrow, and then in the precision that a model computes in."""
        if dtype == self.dtype:
            return [self]
        precisions = (self.dtype, dtype)
        return [dataclasses.replace(self, name=f"{self.name}, {each}", dtype=each) for each in precisions]


Alternatives = Iterator[Callable[[], NamedLayout]]
"""Ways to make a layout of one kind, from the most divided on; making one raises PlanError if it is impossible."""

LayoutKind = Callable[[ModuleGraph, GlobalRows], Alternatives]


def default_layouts(graph: ModuleGraph, rows: GlobalRows, devices: int) -> tuple[list[NamedLayout], dict[str, str]]:
    """One layout of every kind for a model, and for each kind that is impossible the reason.

    Args:
        graph: The model's modules.
        rows: Those of the global batch.
        devices: Number of devices there are.
    """
    layouts, refused = [], {}
    for kind, alternatives in kinds_for(graph).items():
        for make in alternatives(graph, rows):
            try:
                layout = make()
                check_plan(layout.plan, graph, rows.count, devices)
            except PlanError as error:
                refused[kind] = str(error)
                continue
            layouts.append(layout)
            refused.pop(kind, None)
            break
    return layouts, refused


def kinds_for(graph: ModuleGraph) -> dict[str, LayoutKind]:
    """The kinds of layouts for a model: those of expert parallelism only where it has experts."""
    return LAYOUT_KINDS | (EXPERT_LAYOUT_KINDS if any(module.expert_count for module in graph.modules) else {})


# ---------------------------------------------------------------------- kinds of layouts


# Microbatches that are swapped, dropped or counted twice show only where there are several, so layouts have one only if
# nothing else is possible.
_SEVERAL = (2, 3)


def _one_device(graph: ModuleGraph, _: GlobalRows) -> Alternatives:
    for m in (*_SEVERAL, 1):
        yield lambda m=m: NamedLayout(
            f"one device, {m} microbatches", dataclasses.replace(single_device_plan(graph), microbatches=m)
        )


def _all_alike(divisions: Sequence[Parallelism], microbatches: Sequence[int] = (*_SEVERAL, 1)) -> LayoutKind:
    """Every module divided in the same way, on the same devices."""

    def alternatives(graph: ModuleGraph, rows: GlobalRows) -> Alternatives:
        for m, division in itertools.product(microbatches, divisions):
            name = f"all on the same devices, {describe_parallelism([division], m)}"
            yield lambda division=division, m=m, name=name: NamedLayout(
                name, plan_by_module(graph, rows, [division] * 3, m, together=True)
            )

    return alternatives


def _each_its_own(
    *choices: Sequence[Parallelism],
    microbatches: Sequence[int] = _SEVERAL,
    schedule: str = "1f1b",
    together: bool = False,
    transport: str = "",
    attention: str = "",
) -> LayoutKind:
    """Every module divided its own way; a choice is (encoder, backbone, generator)."""

    def alternatives(graph: ModuleGraph, rows: GlobalRows) -> Alternatives:
        for m, divisions in itertools.product((*microbatches, 1), choices):
            words = [describe_parallelism(divisions, m)]
            words += [schedule] if schedule != "1f1b" else []
            words += ["sharing devices"] if together else []
            words += [transport] if transport else []
            words += [f"{attention} attention"] if attention else []
            name = ", ".join(words)
            yield lambda divisions=divisions, m=m, name=name: NamedLayout(
                name, plan_by_module(graph, rows, divisions, m, schedule, together), transport, attention
            )

    return alternatives


def _in_one_unit(
    roles_after_encoder: Sequence[ModuleRole],
    division: Parallelism,
    cut_in_encoder: bool,
    schedule: str = "1f1b",
    tensor_ranks: Sequence[int] = (),
) -> LayoutKind:
    """The last encoder and all modules of some roles in one unit, cut after the first layer of one of them.

    `tensor_ranks` are those of the encoder, of the backbone and of generators, where they differ.
    """

    def alternatives(graph: ModuleGraph, rows: GlobalRows) -> Alternatives:
        roles = module_roles(graph)
        encoders = [name for name in graph.names if roles[name] is ModuleRole.ENCODER]
        if not encoders:
            yield _no_encoder
            return
        chain = [encoders[-1], *(name for name in graph.names if roles[name] in roles_after_encoder)]
        first = 1 if cut_in_encoder else graph[encoders[-1]].layer_count + 1
        for m in (4, *_SEVERAL, 1):
            sizes = [tensor_ranks[roles[name]] for name in chain if tensor_ranks]
            ranks = division.dp * division.tp
            divisions = [dataclasses.replace(division, dp=ranks // size, tp=size) for size in sizes]
            words = f"{' > '.join(chain)} in one unit, {describe_parallelism(divisions or [division], m)}"
            yield lambda m=m, name=f"{words}, first stage {first} layers": NamedLayout(
                name, plan_with_chain(graph, chain, division, first, m, schedule, tensor_ranks)
            )

    return alternatives


def _either(*kinds: LayoutKind) -> LayoutKind:
    """The alternatives of one kind, then those of the others."""
    return lambda graph, rows: itertools.chain.from_iterable(kind(graph, rows) for kind in kinds)


def _no_encoder() -> NamedLayout:
    raise PlanError("the model has no encoder for a chain to begin with")


def describe_parallelism(divisions: Sequence[Parallelism], microbatches: int) -> str:
    """Such as `dp 3 -> 2 -> 1, 2 microbatches`; sizes that are 1 for all are left out."""
    words = []
    for name, default in (("dp", 1), ("tp", 1), ("pp", 1), ("chunks", 1), ("ep", 1), ("fsdp", 1), ("rows", 0)):
        sizes = [getattr(division, name) for division in divisions]
        if max(sizes) > default:
            words.append(f"{name} {' -> '.join(map(str, sizes))}")
    words += ["two capacities"] if any(division.two_capacities for division in divisions) else []
    extra = max(division.extra_in_flight for division in divisions)
    words += [f"{extra} extra in flight"] if extra else []
    policies = dict.fromkeys(division.recompute for division in divisions if division.recompute != ("none",))
    words += [f"{', '.join(by_turns)} recomputation" for by_turns in policies]
    collectives = dict.fromkeys(division.collectives for division in divisions if division.collectives != "reduce")
    words += [f"{name} collectives" for name in collectives]
    return ", ".join([*words, f"{microbatches} microbatches"])


_DP2, _DP3, _DP4 = Parallelism(dp=2), Parallelism(dp=3), Parallelism(dp=4)
_TP2, _PP2, _PP3 = Parallelism(tp=2), Parallelism(pp=2), Parallelism(pp=3)
_TWO_CAPACITIES = Parallelism(dp=2, pp=2, rows=2, two_capacities=True, extra_in_flight=1)
_CHUNKS = Parallelism(pp=2, chunks=2)
_EXTRA, _EXTRA_PP2, _EXTRA_PP3 = (Parallelism(pp=pp, extra_in_flight=1) for pp in (1, 2, 3))
_GATHER, _RING = Parallelism(tp=2, collectives="gather"), Parallelism(tp=2, collectives="ring")
_RING_PP = Parallelism(tp=2, pp=2, collectives="ring")
_SELECTIVE, _FULL = Parallelism(recompute=("selective",)), Parallelism(dp=2, recompute=("full",))
_SELECTIVE_RING = Parallelism(tp=2, recompute=("selective",), collectives="ring")
_FSDP2 = Parallelism(dp=2, fsdp=2)
_HYBRID = Parallelism(dp=6, fsdp=2, recompute=("none", "selective"))
_BY_TURNS = Parallelism(recompute=("full", "offload", "none", "selective"))

# Compilation takes most of the time, so each layout combines several features whose errors can be told apart.
LAYOUT_KINDS: dict[str, LayoutKind] = {
    "one device": _one_device,
    "data parallelism": _all_alike([Parallelism(dp=n) for n in (8, 6, 4, 3, 2)]),
    "fully sharded": _either(
        *(_all_alike([Parallelism(dp=n, fsdp=n)], _SEVERAL) for n in (8, 4)), _all_alike([Parallelism(dp=2, fsdp=2)])
    ),
    "fully sharded in groups of replicas, and with tensor ranks in a pipeline": _each_its_own(
        (_HYBRID, Parallelism(dp=2, tp=2, pp=2, fsdp=2, collectives="ring", recompute=("full",)), _FSDP2),
        (_FSDP2, Parallelism(dp=2, tp=2, pp=2, fsdp=2, recompute=("full",)), UNDIVIDED),
        (UNDIVIDED, _FSDP2, UNDIVIDED),
        together=True,
    ),
    "fully sharded with rows of their own": _each_its_own(
        (
            Parallelism(dp=6, rows=6, fsdp=2),
            Parallelism(dp=3, tp=2, fsdp=3, recompute=("selective", "none")),
            Parallelism(dp=6, rows=6, fsdp=6),
        ),
        (Parallelism(dp=2, rows=2, fsdp=2), _FSDP2, Parallelism(dp=2, rows=2, fsdp=2)),
        together=True,
    ),
    "tensor parallelism": _all_alike([Parallelism(tp=n) for n in (8, 4, 2)]),
    "uneven pipeline, 1F1B": _each_its_own(
        (_EXTRA, _EXTRA_PP3, UNDIVIDED), (_EXTRA, _EXTRA_PP2, UNDIVIDED), microbatches=(4, *_SEVERAL)
    ),
    "uneven pipeline, GPipe": _each_its_own(
        (_PP2, _PP3, UNDIVIDED), (UNDIVIDED, _PP2, UNDIVIDED), microbatches=(4, *_SEVERAL), schedule="gpipe"
    ),
    "interleaved pipeline": _either(
        _each_its_own((UNDIVIDED, _CHUNKS, UNDIVIDED), microbatches=(4, *_SEVERAL), schedule="interleaved"),
        _in_one_unit((ModuleRole.BACKBONE,), _CHUNKS, cut_in_encoder=True, schedule="interleaved"),
    ),
    "fewer replicas downstream": _each_its_own(
        (_DP3, _DP2, UNDIVIDED), (_DP4, _DP2, UNDIVIDED), transport="device_put"
    ),
    "more replicas downstream": _each_its_own((_DP2, _DP3, _DP2), (UNDIVIDED, _DP2, _DP4), (UNDIVIDED, _DP2, _DP2)),
    "rows of their own, fewer replicas downstream": _each_its_own(
        (Parallelism(dp=3, rows=3), _DP2, Parallelism(rows=5)), (Parallelism(dp=2, rows=4), UNDIVIDED, UNDIVIDED)
    ),
    "rows of their own, more replicas than the batch has rows": _each_its_own(
        (Parallelism(tp=2, rows=1), UNDIVIDED, Parallelism(dp=5, rows=5)),
        (Parallelism(tp=2, rows=1), UNDIVIDED, UNDIVIDED),
        microbatches=(12, 8, 4, *_SEVERAL),  # of one row, if it can be, so that some have no image
    ),
    "rows of their own of two capacities": _each_its_own(
        (_TWO_CAPACITIES, _PP2, Parallelism(rows=2, two_capacities=True)),
        (Parallelism(rows=1, two_capacities=True), UNDIVIDED, Parallelism(rows=1, two_capacities=True)),
        microbatches=(6, 4, *_SEVERAL),
        transport="ppermute",
    ),
    "rows of their own on shared devices": _each_its_own(
        (Parallelism(dp=8, rows=8), Parallelism(dp=2, pp=2), Parallelism(dp=2, tp=2, rows=2)),
        (Parallelism(dp=2, rows=2), UNDIVIDED, Parallelism(dp=2, rows=2)),
        together=True,
    ),
    "fewer and more tensor ranks": _each_its_own((_TP2, UNDIVIDED, _TP2), transport="ppermute"),
    "sequence parallelism": _each_its_own(
        (_GATHER, Parallelism(tp=4, collectives="ring"), _RING),
        (_GATHER, _RING_PP, _RING),
        (_GATHER, _RING, UNDIVIDED),
        (UNDIVIDED, _RING, UNDIVIDED),
        attention="blocked",
    ),
    "more and fewer tensor ranks, selective recomputation": _each_its_own(
        (_SELECTIVE, dataclasses.replace(_SELECTIVE_RING, pp=2), _SELECTIVE),
        (_SELECTIVE, _SELECTIVE_RING, _SELECTIVE),
    ),
    "fewer and more replicas, full recomputation": _each_its_own(
        (_FULL, Parallelism(tp=2, pp=2, recompute=("full",)), _FULL), (_FULL, Parallelism(recompute=("full",)), _FULL)
    ),
    "recomputation and offload that change along a pipeline and within a stage": _each_its_own(
        (_BY_TURNS, dataclasses.replace(_BY_TURNS, tp=2, pp=2), UNDIVIDED), (_BY_TURNS, _BY_TURNS, UNDIVIDED)
    ),
    "replicas and tensor ranks differ": _each_its_own(
        (_TP2, Parallelism(dp=2, tp=2), UNDIVIDED), (_TP2, _DP2, UNDIVIDED), transport="ppermute"
    ),
    "shared devices": _each_its_own((_DP2, _PP2, _TP2), (_DP2, UNDIVIDED, _DP2), together=True),
    "chain cut in the backbone": _in_one_unit((ModuleRole.BACKBONE,), _PP2, cut_in_encoder=False),
    "chain cut in the encoder": _in_one_unit(
        (ModuleRole.BACKBONE, ModuleRole.GENERATOR), Parallelism(dp=2, pp=2), cut_in_encoder=True
    ),
    "chain cut in the backbone, more tensor ranks there": _in_one_unit(
        (ModuleRole.BACKBONE,), _RING_PP, cut_in_encoder=False, tensor_ranks=(1, 2, 1)
    ),
    "chain cut in the encoder, more tensor ranks in the backbone": _either(
        *(
            _in_one_unit(
                (ModuleRole.BACKBONE, ModuleRole.GENERATOR),
                dataclasses.replace(_RING_PP, dp=dp),
                cut_in_encoder=True,
                tensor_ranks=(1, 2, 1),
            )
            for dp in (2, 1)
        )
    ),
}

_EP_TP_PP = Parallelism(dp=2, tp=2, pp=2, recompute=("selective",), ep=2, collectives="ring")

EXPERT_LAYOUT_KINDS: dict[str, LayoutKind] = {
    "expert ranks that are all replicas": _each_its_own(
        (UNDIVIDED, Parallelism(dp=4, ep=4), UNDIVIDED),
        (UNDIVIDED, Parallelism(dp=2, ep=2), UNDIVIDED),
        microbatches=(3, 2),
    ),
    "expert ranks that are some of the replicas": _each_its_own((_DP2, Parallelism(dp=4, ep=2), UNDIVIDED)),
    "expert ranks, fully sharded": _each_its_own(
        (_DP2, Parallelism(dp=4, ep=2, fsdp=4, recompute=("selective",)), UNDIVIDED),
        (UNDIVIDED, Parallelism(dp=2, ep=2, fsdp=2), UNDIVIDED),
    ),
    "expert and tensor ranks in a pipeline": _each_its_own(
        (_DP2, _EP_TP_PP, _TP2), (_DP2, Parallelism(dp=2, pp=2, ep=2), UNDIVIDED), together=True
    ),
}
