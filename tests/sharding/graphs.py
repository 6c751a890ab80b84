"""Stage graphs that several tests use."""

import itertools

from hypothesis import strategies as st

from sharding.schedule import Node, StageGraph, Work


def chain(length: int) -> StageGraph:
    """One unit of stages on devices of their own."""
    nodes = [("unit", stage) for stage in range(length)]
    return StageGraph({node: frozenset([node[1]]) for node in nodes}, tuple(itertools.pairwise(nodes)))


def fan(near: int, far: int, backbone: int, lanes: tuple[frozenset[int], ...] | None = None) -> StageGraph:
    """Two encoders of any depth feed a backbone that feeds two generators; each stage has its own device by default."""
    units = [
        [(name, stage) for stage in range(n)] for name, n in (("near", near), ("far", far), ("backbone", backbone))
    ]
    paint, draw = ("paint", 0), ("draw", 0)
    nodes: list[Node] = [*itertools.chain(*units), paint, draw]
    edges = [edge for unit in units for edge in itertools.pairwise(unit)]
    edges += [(units[0][-1], units[2][0]), (units[1][-1], units[2][0]), (units[2][-1], paint), (units[2][-1], draw)]
    lanes = lanes or tuple(frozenset([index]) for index in range(len(nodes)))
    return StageGraph(dict(zip(nodes, lanes, strict=True)), tuple(edges))


@st.composite
def recipes(draw: st.DrawFn) -> tuple:
    """For `cook`, apart from it because beartype draws random numbers, which Hypothesis forbids inside a strategy."""
    depths = draw(st.tuples(*[st.integers(1, 3)] * 3))
    count = sum(depths) + 2
    held = st.frozensets(st.integers(0, 5), min_size=1, max_size=2)
    lanes = draw(st.none() | st.tuples(*[held] * count))
    stage = st.integers(0, count - 1)
    shares = draw(st.lists(st.lists(stage, min_size=2, max_size=2, unique=True), max_size=1))
    return depths, lanes, draw(st.frozensets(stage)), shares, draw(st.integers(1, 5))


def cook(recipe: tuple) -> Work:
    """A step over a fan: any depths, stages that share devices, anything frozen, a parameter shared or none."""
    depths, lanes, trained, shared, microbatches = recipe
    graph = fan(*depths, lanes)
    trains = frozenset(graph.nodes[index] for index in trained)
    shares = tuple((graph.nodes[owner], graph.nodes[borrower]) for owner, borrower in shared)
    return Work(graph, microbatches, graph.with_descendants(trains), trains, shares)
