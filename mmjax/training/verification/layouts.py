"""The layouts that `python -m mmjax.verify` tries by itself: every kind of cut, as far as the model allows it."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from sharding.plans.plan import Plan, PlanError, UnitPlan, check_plan, single_device_plan
from sharding.specs.modules import ModuleGraph, ModuleSpec


@dataclasses.dataclass(frozen=True)
class NamedLayout:
    """A plan, how its hops travel (`sharding.runtime.hops`), and by what its modules attend.

    `attention` is an implementation of `pallas_kernels.packed_attention`; by default what shapes and devices choose.
    """

    name: str
    plan: Plan
    transport: str = "auto"
    attention: str = ""


@dataclasses.dataclass(frozen=True)
class Parallelism:
    """How one module is cut."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    recompute: str = "none"
    chunks: int = 1
    ep: int = 1
    collectives: str = "reduce"

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.dp * self.tp * self.pp


UNDIVIDED = Parallelism()
Alternatives = Iterator[Callable[[], NamedLayout]]


def default_layouts(graph: ModuleGraph, rows: int, devices: int) -> tuple[list[NamedLayout], dict[str, str]]:
    """Layouts for a model on these devices, and for each kind of layout that can't be, the reason.

    Args:
        graph: The model's modules.
        rows: Rows of the global batch.
        devices: Number of devices there are.
    """
    layouts, refused = [], {}
    for kind, alternatives in kinds_for(graph).items():
        for make in alternatives(graph):
            try:
                layout = make()
                check_plan(layout.plan, graph, rows, devices)
            except PlanError as error:
                refused[kind] = str(error)
                continue
            layouts.append(layout)
            refused.pop(kind, None)
            break
    return layouts, refused


def kinds_for(graph: ModuleGraph) -> dict[str, Callable[[ModuleGraph], Alternatives]]:
    """The kinds of layouts that say something about a model: those of experts where it has some."""
    return LAYOUT_KINDS | (EXPERT_LAYOUT_KINDS if any(module.expert_count for module in graph.modules) else {})


# ---------------------------------------------------------------------- plans from cuts


def module_roles(graph: ModuleGraph) -> dict[str, int]:
    """0 for an encoder, 1 for the backbone (the module next to most others), 2 for a generator, by name."""

    def neighbours(module: ModuleSpec) -> tuple[int, int]:
        return sum(module.name in edge for edge in graph.edges), module.layer_count

    backbone = max(graph.modules, key=neighbours)
    return {
        module.name: 1 if module is backbone else 2 if backbone.name in module.inputs else 0 for module in graph.modules
    }


def uneven_layers(layers: int, stages: int) -> tuple[int, ...]:
    """One layer a stage, the rest on the last; zero there if there are too few, which a unit refuses."""
    return (*[1] * (stages - 1), max(0, layers - stages + 1))


def plan_by_module(
    graph: ModuleGraph,
    cuts: Sequence[Parallelism],
    microbatches: int = 1,
    schedule: str = "1f1b",
    together: bool = False,
) -> Plan:
    """Every module a unit of its own.

    Args:
        graph: The modules.
        cuts: Of every encoder, of the backbone and of every generator.
        microbatches, schedule: As in `Plan`.
        together: Whether all units start at device 0, else each behind the one before, generators first: what costs
            most to compile then lies on the same devices in many layouts, which a compilation cache notices.
    """
    role = module_roles(graph)
    of = {
        m.name: cuts[role[m.name]] if m.divisible else dataclasses.replace(cuts[role[m.name]], pp=1, chunks=1)
        for m in graph.modules
    }
    starts, first = {}, 0
    for name in sorted(graph.names, key=lambda name: (2, 0, 1).index(role[name])):
        starts[name] = first
        first += 0 if together else of[name].size
    units = []
    for module in graph.modules:
        cut, start = of[module.name], starts[module.name]
        devices = tuple(range(start, start + cut.size))
        layers = uneven_layers(module.layer_count, cut.pp * cut.chunks)
        recompute = (cut.recompute,) * len(layers)
        units.append(
            UnitPlan(
                module.name,
                (module.name,),
                devices,
                cut.dp,
                cut.tp,
                layers,
                recompute,
                cut.chunks,
                ep=cut.ep,
                collectives=cut.collectives,
            )
        )
    return Plan(tuple(units), microbatches, schedule)


def plan_with_chain(
    graph: ModuleGraph,
    chain: Sequence[str],
    cut: Parallelism,
    first_layers: int,
    microbatches: int,
    schedule: str = "1f1b",
) -> Plan:
    """Modules of a chain in one unit, cut behind its first layers; the others each a unit on a device of its own."""
    total = sum(graph[name].layer_count for name in chain)
    layers = (first_layers, *uneven_layers(total - first_layers, cut.pp * cut.chunks - 1))
    others = [module for module in reversed(graph.modules) if module.name not in chain]
    units = [UnitPlan(of.name, (of.name,), (device,), layers=(of.layer_count,)) for device, of in enumerate(others)]
    devices = tuple(range(len(others), len(others) + cut.size))
    recompute = (cut.recompute,) * len(layers)
    units.append(UnitPlan("chain", tuple(chain), devices, cut.dp, cut.tp, layers, recompute, cut.chunks))
    return Plan(tuple(units), microbatches, schedule)


# ---------------------------------------------------------------------- kinds: alternatives, the boldest first


def _alone(graph: ModuleGraph) -> Alternatives:
    yield lambda: NamedLayout("one device", single_device_plan(graph))


def _everywhere(
    cuts: Sequence[Parallelism], microbatches: Sequence[int] = (1,)
) -> Callable[[ModuleGraph], Alternatives]:
    """Every module cut the same, on the same devices."""

    def alternatives(graph: ModuleGraph) -> Alternatives:
        for cut, m in itertools.product(cuts, microbatches):
            name = f"all on the same devices, {describe_parallelism([cut], m)}"
            yield lambda cut=cut, m=m, name=name: NamedLayout(name, plan_by_module(graph, [cut] * 3, m, together=True))

    return alternatives


def _apart(
    *choices: tuple[Sequence[Parallelism], int],
    schedule: str = "1f1b",
    together: bool = False,
    transport: str = "auto",
    attention: str = "",
) -> Callable[[ModuleGraph], Alternatives]:
    """Every module cut its own way; each choice is (encoder, backbone, generator) and the number of microbatches."""

    def alternatives(graph: ModuleGraph) -> Alternatives:
        for cuts, m in choices:
            words = [describe_parallelism(cuts, m), *([schedule] if schedule != "1f1b" else [])]
            words += [*(["sharing devices"] if together else []), *([transport] if transport != "auto" else [])]
            name = ", ".join([*words, *([f"{attention} attention"] if attention else [])])
            yield lambda cuts=cuts, m=m, name=name: NamedLayout(
                name, plan_by_module(graph, cuts, m, schedule, together), transport, attention
            )

    return alternatives


def _chain(
    ends: Sequence[int], cut: Parallelism, into_encoder: bool, schedule: str = "1f1b"
) -> Callable[[ModuleGraph], Alternatives]:
    """The last encoder and the backbone in one unit, and what follows too if the chain's `ends` include 2."""

    def alternatives(graph: ModuleGraph) -> Alternatives:
        role = module_roles(graph)
        encoders = [name for name in graph.names if role[name] == 0]
        if not encoders:
            yield _no_encoder
            return
        chain = [encoders[-1], *(name for name in graph.names if role[name] in ends)]
        first = 1 if into_encoder else graph[encoders[-1]].layer_count + 1
        for m in (4, 2, 1):
            name = f"{' > '.join(chain)} in one unit, {describe_parallelism([cut], m)}, first stage {first} layers"
            yield lambda m=m, name=name: NamedLayout(name, plan_with_chain(graph, chain, cut, first, m, schedule))

    return alternatives


def _either(*kinds: Callable[[ModuleGraph], Alternatives]) -> Callable[[ModuleGraph], Alternatives]:
    """The alternatives of one kind, then those of another."""
    return lambda graph: itertools.chain.from_iterable(kind(graph) for kind in kinds)


def _no_encoder() -> NamedLayout:
    raise PlanError("the model has no encoder for a chain to begin with")


def describe_parallelism(cuts: Sequence[Parallelism], microbatches: int) -> str:
    """Such as `dp 3 -> 2 -> 1, 2 microbatches`; what is 1 for all is left out."""
    words = []
    for name in ("dp", "tp", "pp", "chunks", "ep"):
        sizes = [getattr(cut, name) for cut in cuts]
        if max(sizes) > 1:
            words.append(f"{name} {' -> '.join(map(str, sizes))}")
    kinds = dict.fromkeys(cut.recompute for cut in cuts if cut.recompute != "none")
    words += [f"{kind} recomputation" for kind in kinds]
    ways = dict.fromkeys(cut.collectives for cut in cuts if cut.collectives != "reduce")
    words += [f"{way} collectives" for way in ways]
    return ", ".join([*words, f"{microbatches} microbatches"])


_DP2, _TP2, _PP2 = Parallelism(dp=2), Parallelism(tp=2), Parallelism(pp=2)
_CHUNKS = Parallelism(pp=2, chunks=2)
_GATHER, _RING = Parallelism(tp=2, collectives="gather"), Parallelism(tp=2, collectives="ring")
_SELECTIVE, _FULL = Parallelism(recompute="selective"), Parallelism(dp=2, recompute="full")

# Recomputation and transports go with what they need not be told apart from: every layout costs its compilation.
LAYOUT_KINDS: dict[str, Callable[[ModuleGraph], Alternatives]] = {
    "one device": _alone,
    "data parallelism": _everywhere([Parallelism(dp=n) for n in (8, 6, 4, 3, 2)]),
    "tensor parallelism": _everywhere([Parallelism(tp=n) for n in (8, 4, 2)], (2, 1)),
    "uneven pipeline, 1F1B": _apart(((UNDIVIDED, Parallelism(pp=3), UNDIVIDED), 4), ((UNDIVIDED, _PP2, UNDIVIDED), 4)),
    "uneven pipeline, GPipe": _apart(
        ((_PP2, Parallelism(pp=3), UNDIVIDED), 4), ((UNDIVIDED, _PP2, UNDIVIDED), 2), schedule="gpipe"
    ),
    "interleaved pipeline": _either(
        _apart(((UNDIVIDED, _CHUNKS, UNDIVIDED), 4), ((UNDIVIDED, _CHUNKS, UNDIVIDED), 2), schedule="interleaved"),
        _chain((1,), _CHUNKS, into_encoder=True, schedule="interleaved"),
    ),
    "fewer instances": _apart(
        ((Parallelism(dp=3), _DP2, UNDIVIDED), 2), ((Parallelism(dp=4), _DP2, UNDIVIDED), 1), transport="device_put"
    ),
    "more instances": _apart(
        ((_DP2, Parallelism(dp=3), _DP2), 2), ((UNDIVIDED, _DP2, Parallelism(dp=4)), 1), ((UNDIVIDED, _DP2, _DP2), 1)
    ),
    "fewer and more tensor ranks": _apart(
        ((_TP2, UNDIVIDED, _TP2), 2), ((_TP2, UNDIVIDED, _TP2), 1), transport="ppermute"
    ),
    "positions divided by tensor ranks": _apart(
        ((_GATHER, Parallelism(tp=4, collectives="ring"), _RING), 2),
        ((_GATHER, Parallelism(tp=2, pp=2, collectives="ring"), _RING), 2),
        ((_GATHER, _RING, UNDIVIDED), 2),
        ((UNDIVIDED, _RING, UNDIVIDED), 2),
        attention="blocked",
    ),
    "more and fewer tensor ranks, selective recomputation": _apart(
        ((_SELECTIVE, Parallelism(tp=2, pp=2, recompute="selective", collectives="ring"), _SELECTIVE), 2),
        ((_SELECTIVE, Parallelism(tp=2, recompute="selective", collectives="ring"), _SELECTIVE), 1),
    ),
    "fewer and more instances, full recomputation": _apart(
        ((_FULL, Parallelism(tp=2, pp=2, recompute="full"), _FULL), 2),
        ((_FULL, Parallelism(recompute="full"), _FULL), 1),
    ),
    "both axes differ": _apart(
        ((_TP2, Parallelism(dp=2, tp=2), UNDIVIDED), 2), ((_TP2, _DP2, UNDIVIDED), 1), transport="ppermute"
    ),
    "shared devices": _apart(((_DP2, _PP2, _TP2), 2), ((_DP2, UNDIVIDED, _DP2), 1), together=True),
    "chain cut in the backbone": _chain((1,), _PP2, into_encoder=False),
    "chain cut in the encoder": _chain((1, 2), Parallelism(dp=2, pp=2), into_encoder=True),
}

_EP_TP_PP = Parallelism(dp=2, tp=2, pp=2, recompute="selective", ep=2, collectives="ring")

EXPERT_LAYOUT_KINDS: dict[str, Callable[[ModuleGraph], Alternatives]] = {
    "expert ranks that are all instances": _apart(
        ((UNDIVIDED, Parallelism(dp=4, ep=4), UNDIVIDED), 1),
        ((UNDIVIDED, Parallelism(dp=2, ep=2), UNDIVIDED), 2),
        ((UNDIVIDED, Parallelism(dp=2, ep=2), UNDIVIDED), 1),
    ),
    "expert ranks that are some of the instances": _apart(((_DP2, Parallelism(dp=4, ep=2), UNDIVIDED), 1)),
    "expert and tensor ranks in a pipeline": _apart(
        ((_DP2, _EP_TP_PP, _TP2), 2), ((_DP2, Parallelism(dp=2, pp=2, ep=2), UNDIVIDED), 2), together=True
    ),
}
