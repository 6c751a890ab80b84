"""The layouts that `python -m mmjax.verify` tries by itself: every kind of cut, as far as the model allows it."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from sharding.plan import Plan, PlanError, UnitPlan, check_plan, one_device
from sharding.specs import ModuleGraph, ModuleSpec


@dataclasses.dataclass(frozen=True)
class Layout:
    """A plan, how its hops travel (`sharding.runtime.broker`), and by what its modules attend.

    `attention` is an implementation of `pallas_kernels.packed_attention`; by default what shapes and devices choose.
    """

    name: str
    plan: Plan
    transport: str = "auto"
    attention: str = ""


@dataclasses.dataclass(frozen=True)
class Cut:
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


WHOLE = Cut()
Alternatives = Iterator[Callable[[], Layout]]


def default_layouts(graph: ModuleGraph, rows: int, devices: int) -> tuple[list[Layout], dict[str, str]]:
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
    return KINDS | (EXPERT_KINDS if any(module.expert_count for module in graph.modules) else {})


# ---------------------------------------------------------------------- plans from cuts


def roles(graph: ModuleGraph) -> dict[str, int]:
    """0 for an encoder, 1 for the backbone (the module next to most others), 2 for a generator, by name."""

    def neighbours(module: ModuleSpec) -> tuple[int, int]:
        return sum(module.name in edge for edge in graph.edges), module.layers

    backbone = max(graph.modules, key=neighbours)
    return {
        module.name: 1 if module is backbone else 2 if backbone.name in module.inputs else 0 for module in graph.modules
    }


def uneven(layers: int, stages: int) -> tuple[int, ...]:
    """One layer a stage, the rest on the last; zero there if there are too few, which a unit refuses."""
    return (*[1] * (stages - 1), max(0, layers - stages + 1))


def by_module(
    graph: ModuleGraph,
    cuts: Sequence[Cut],
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
    role = roles(graph)
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
        layers = uneven(module.layers, cut.pp * cut.chunks)
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


def chained(
    graph: ModuleGraph, chain: Sequence[str], cut: Cut, first_layers: int, microbatches: int, schedule: str = "1f1b"
) -> Plan:
    """Modules of a chain in one unit, cut behind its first layers; the others each a unit on a device of its own."""
    total = sum(graph[name].layers for name in chain)
    layers = (first_layers, *uneven(total - first_layers, cut.pp * cut.chunks - 1))
    others = [module for module in reversed(graph.modules) if module.name not in chain]
    units = [UnitPlan(of.name, (of.name,), (device,), layers=(of.layers,)) for device, of in enumerate(others)]
    devices = tuple(range(len(others), len(others) + cut.size))
    recompute = (cut.recompute,) * len(layers)
    units.append(UnitPlan("chain", tuple(chain), devices, cut.dp, cut.tp, layers, recompute, cut.chunks))
    return Plan(tuple(units), microbatches, schedule)


# ---------------------------------------------------------------------- kinds: alternatives, the boldest first


def _alone(graph: ModuleGraph) -> Alternatives:
    yield lambda: Layout("one device", one_device(graph))


def _everywhere(cuts: Sequence[Cut], microbatches: Sequence[int] = (1,)) -> Callable[[ModuleGraph], Alternatives]:
    """Every module cut the same, on the same devices."""

    def alternatives(graph: ModuleGraph) -> Alternatives:
        for cut, m in itertools.product(cuts, microbatches):
            name = f"all on the same devices, {describe([cut], m)}"
            yield lambda cut=cut, m=m, name=name: Layout(name, by_module(graph, [cut] * 3, m, together=True))

    return alternatives


def _apart(
    *choices: tuple[Sequence[Cut], int],
    schedule: str = "1f1b",
    together: bool = False,
    transport: str = "auto",
    attention: str = "",
) -> Callable[[ModuleGraph], Alternatives]:
    """Every module cut its own way; each choice is (encoder, backbone, generator) and the number of microbatches."""

    def alternatives(graph: ModuleGraph) -> Alternatives:
        for cuts, m in choices:
            words = [describe(cuts, m), *([schedule] if schedule != "1f1b" else [])]
            words += [*(["sharing devices"] if together else []), *([transport] if transport != "auto" else [])]
            name = ", ".join([*words, *([f"{attention} attention"] if attention else [])])
            yield lambda cuts=cuts, m=m, name=name: Layout(
                name, by_module(graph, cuts, m, schedule, together), transport, attention
            )

    return alternatives


def _chain(
    ends: Sequence[int], cut: Cut, into_encoder: bool, schedule: str = "1f1b"
) -> Callable[[ModuleGraph], Alternatives]:
    """The last encoder and the backbone in one unit, and what follows too if the chain's `ends` include 2."""

    def alternatives(graph: ModuleGraph) -> Alternatives:
        role = roles(graph)
        encoders = [name for name in graph.names if role[name] == 0]
        if not encoders:
            yield _no_encoder
            return
        chain = [encoders[-1], *(name for name in graph.names if role[name] in ends)]
        first = 1 if into_encoder else graph[encoders[-1]].layers + 1
        for m in (4, 2, 1):
            name = f"{' > '.join(chain)} in one unit, {describe([cut], m)}, first stage {first} layers"
            yield lambda m=m, name=name: Layout(name, chained(graph, chain, cut, first, m, schedule))

    return alternatives


def _either(*kinds: Callable[[ModuleGraph], Alternatives]) -> Callable[[ModuleGraph], Alternatives]:
    """The alternatives of one kind, then those of another."""
    return lambda graph: itertools.chain.from_iterable(kind(graph) for kind in kinds)


def _no_encoder() -> Layout:
    raise PlanError("the model has no encoder for a chain to begin with")


def describe(cuts: Sequence[Cut], microbatches: int) -> str:
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


_DP2, _TP2, _PP2 = Cut(dp=2), Cut(tp=2), Cut(pp=2)
_CHUNKS = Cut(pp=2, chunks=2)
_GATHER, _RING = Cut(tp=2, collectives="gather"), Cut(tp=2, collectives="ring")
_SELECTIVE, _FULL = Cut(recompute="selective"), Cut(dp=2, recompute="full")

# Recomputation and transports go with what they need not be told apart from: every layout costs its compilation.
KINDS: dict[str, Callable[[ModuleGraph], Alternatives]] = {
    "one device": _alone,
    "data parallelism": _everywhere([Cut(dp=n) for n in (8, 6, 4, 3, 2)]),
    "tensor parallelism": _everywhere([Cut(tp=n) for n in (8, 4, 2)], (2, 1)),
    "uneven pipeline, 1F1B": _apart(((WHOLE, Cut(pp=3), WHOLE), 4), ((WHOLE, _PP2, WHOLE), 4)),
    "uneven pipeline, GPipe": _apart(((_PP2, Cut(pp=3), WHOLE), 4), ((WHOLE, _PP2, WHOLE), 2), schedule="gpipe"),
    "interleaved pipeline": _either(
        _apart(((WHOLE, _CHUNKS, WHOLE), 4), ((WHOLE, _CHUNKS, WHOLE), 2), schedule="interleaved"),
        _chain((1,), _CHUNKS, into_encoder=True, schedule="interleaved"),
    ),
    "fewer instances": _apart(((Cut(dp=3), _DP2, WHOLE), 2), ((Cut(dp=4), _DP2, WHOLE), 1), transport="device_put"),
    "more instances": _apart(((_DP2, Cut(dp=3), _DP2), 2), ((WHOLE, _DP2, Cut(dp=4)), 1), ((WHOLE, _DP2, _DP2), 1)),
    "fewer and more tensor ranks": _apart(((_TP2, WHOLE, _TP2), 2), ((_TP2, WHOLE, _TP2), 1), transport="ppermute"),
    "positions divided by tensor ranks": _apart(
        ((_GATHER, Cut(tp=4, collectives="ring"), _RING), 2),
        ((_GATHER, Cut(tp=2, pp=2, collectives="ring"), _RING), 2),
        ((_GATHER, _RING, WHOLE), 2),
        ((WHOLE, _RING, WHOLE), 2),
        attention="blocked",
    ),
    "more and fewer tensor ranks, selective recomputation": _apart(
        ((_SELECTIVE, Cut(tp=2, pp=2, recompute="selective", collectives="ring"), _SELECTIVE), 2),
        ((_SELECTIVE, Cut(tp=2, recompute="selective", collectives="ring"), _SELECTIVE), 1),
    ),
    "fewer and more instances, full recomputation": _apart(
        ((_FULL, Cut(tp=2, pp=2, recompute="full"), _FULL), 2), ((_FULL, Cut(recompute="full"), _FULL), 1)
    ),
    "both axes differ": _apart(((_TP2, Cut(dp=2, tp=2), WHOLE), 2), ((_TP2, _DP2, WHOLE), 1), transport="ppermute"),
    "shared devices": _apart(((_DP2, _PP2, _TP2), 2), ((_DP2, WHOLE, _DP2), 1), together=True),
    "chain cut in the backbone": _chain((1,), _PP2, into_encoder=False),
    "chain cut in the encoder": _chain((1, 2), Cut(dp=2, pp=2), into_encoder=True),
}

_EP_TP_PP = Cut(dp=2, tp=2, pp=2, recompute="selective", ep=2, collectives="ring")

EXPERT_KINDS: dict[str, Callable[[ModuleGraph], Alternatives]] = {
    "expert ranks that are all instances": _apart(
        ((WHOLE, Cut(dp=4, ep=4), WHOLE), 1), ((WHOLE, Cut(dp=2, ep=2), WHOLE), 2), ((WHOLE, Cut(dp=2, ep=2), WHOLE), 1)
    ),
    "expert ranks that are some of the instances": _apart(((_DP2, Cut(dp=4, ep=2), WHOLE), 1)),
    "expert and tensor ranks in a pipeline": _apart(
        ((_DP2, _EP_TP_PP, _TP2), 2), ((_DP2, Cut(dp=2, pp=2, ep=2), WHOLE), 2), together=True
    ),
}
