"""Stage graphs that several tests use."""

import itertools

from hypothesis import strategies as st

from sharding.plans.stage_graph import StageGraph, StageId
from sharding.schedules.ops import OpGraph


def chain(length: int) -> StageGraph:
    """One unit of stages on devices of their own."""
    nodes = [("unit", stage) for stage in range(length)]
    return StageGraph({node: frozenset([node[1]]) for node in nodes}, tuple(itertools.pairwise(nodes)))


def ring(places: int, chunks: int) -> StageGraph:
    """One unit with chunks on devices of its own."""
    nodes = [("unit", stage) for stage in range(places * chunks)]
    lanes = {node: frozenset([node[1] % places]) for node in nodes}
    return StageGraph(lanes, tuple(itertools.pairwise(nodes)), {"unit": places} if chunks > 1 else {})


def fan(
    near: int,
    far: int,
    backbone: int,
    lanes: tuple[frozenset[int], ...] | None = None,
    chunks: tuple[int, int, int] = (1, 1, 1),
) -> StageGraph:
    """Two encoders feed a backbone that feeds two generators of one stage.

    Args:
        near, far, backbone: Places of the encoders and the backbone.
        lanes: Devices of every place, the generators' last; by default each has one of its own.
        chunks: Of the encoders and the backbone.
    """
    lanes = lanes or tuple(frozenset([index]) for index in range(near + far + backbone + 2))
    held = iter(lanes)
    found: dict[StageId, frozenset[int]] = {}
    units: list[list[StageId]] = []
    for name, pp, count in zip(("near", "far", "backbone"), (near, far, backbone), chunks, strict=True):
        places = [next(held) for _ in range(pp)]
        units.append([(name, stage) for stage in range(pp * count)])
        found |= {node: places[node[1] % pp] for node in units[-1]}
    paint, draw = ("paint", 0), ("draw", 0)
    found |= {paint: next(held), draw: next(held)}
    edges = [edge for unit in units for edge in itertools.pairwise(unit)]
    edges += [(units[0][-1], units[2][0]), (units[1][-1], units[2][0]), (units[2][-1], paint), (units[2][-1], draw)]
    counts = zip(("near", "far", "backbone"), (near, far, backbone), chunks, strict=True)
    return StageGraph(found, tuple(edges), {name: pp for name, pp, count in counts if count > 1})


@st.composite
def recipes(draw: st.DrawFn) -> tuple:
    """For `build_op_graph`, apart from it because beartype draws random numbers, which Hypothesis forbids inside a strategy."""
    depths = draw(st.tuples(*[st.integers(1, 3)] * 3))
    chunks = draw(st.tuples(st.just(1), st.integers(1, 2), st.integers(1, 3)))
    held = st.frozensets(st.integers(0, 5), min_size=1, max_size=2)
    lanes = draw(st.none() | st.tuples(*[held] * (sum(depths) + 2)))
    stage = st.integers(0, sum(pp * count for pp, count in zip(depths, chunks, strict=True)) + 1)
    shares = draw(st.lists(st.lists(stage, min_size=2, max_size=2, unique=True), max_size=1))
    return depths, lanes, chunks, draw(st.frozensets(stage)), shares, draw(st.integers(1, 7))


def build_op_graph(recipe: tuple) -> OpGraph:
    """A step over a fan: any depths and chunks, shared devices, anything frozen, a shared parameter or none."""
    depths, lanes, chunks, trained, shared, microbatches = recipe
    graph = fan(*depths, lanes, chunks)
    trains = frozenset(graph.stages[index] for index in trained)
    shares = tuple((graph.stages[owner], graph.stages[borrower]) for owner, borrower in shared)
    return OpGraph(graph, microbatches, graph.with_descendants(trains), trains, shares)


def training(graph: StageGraph, microbatches: int) -> OpGraph:
    """A step in which every stage trains."""
    return OpGraph(graph, microbatches, frozenset(graph.stages), frozenset(graph.stages))
