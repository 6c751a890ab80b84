"""Stage graphs that several tests use."""

import itertools
import math
from collections.abc import Mapping

from hypothesis import strategies as st

from sharding.plans.resolved.stage_graph import PipelineReplicas, StageGraph, StageId
from sharding.schedules.ops import OpGraph


def chain(length: int) -> StageGraph:
    """A unit of stages with one device each."""
    stage_ids = [("unit", stage) for stage in range(length)]
    return StageGraph(
        {stage_id: frozenset([stage_id[1]]) for stage_id in stage_ids}, tuple(itertools.pairwise(stage_ids))
    )


def ring(ranks: int, chunks: int) -> StageGraph:
    """A unit with chunks and one device per pipeline rank."""
    stage_ids = [("unit", stage) for stage in range(ranks * chunks)]
    device_sets = {stage_id: frozenset([stage_id[1] % ranks]) for stage_id in stage_ids}
    return StageGraph(device_sets, tuple(itertools.pairwise(stage_ids)), {"unit": ranks} if chunks > 1 else {})


def fan(
    near: int,
    far: int,
    backbone: int,
    device_sets: tuple[frozenset[int], ...] | None = None,
    chunks: tuple[int, int, int] = (1, 1, 1),
    pipeline_replicas: Mapping[str, tuple[int, ...]] | None = None,
) -> StageGraph:
    """Two encoders feed a backbone that feeds two generators of one stage.

    Args:
        near: Pipeline ranks of an encoder.
        far: Pipeline ranks of the other encoder.
        backbone: Pipeline ranks of the backbone.
        device_sets: Devices of every pipeline rank, the generators' last; by default each has one of its own.
        chunks: Chunks of the encoders and the backbone.
        pipeline_replicas: By unit with pipeline replicas, which pipeline replica takes each microbatch. Every device is
        then replaced by several, which
            are divided among the pipeline replicas of each unit.
    """
    pipeline_replicas, split = (
        pipeline_replicas or {},
        math.lcm(*(len(set(taken)) for taken in (pipeline_replicas or {}).values())),
    )
    device_sets = device_sets or tuple(frozenset([index]) for index in range(near + far + backbone + 2))
    held = iter(replaced(device_set, split) for device_set in device_sets)
    stage_devices: dict[StageId, frozenset[int]] = {}
    units: list[list[StageId]] = []
    for name, pp, count in zip(("near", "far", "backbone"), (near, far, backbone), chunks, strict=True):
        ranks = [next(held) for _ in range(pp)]
        units.append([(name, stage) for stage in range(pp * count)])
        stage_devices |= {stage_id: ranks[stage_id[1] % pp] for stage_id in units[-1]}
    paint, draw = ("paint", 0), ("draw", 0)
    stage_devices |= {paint: next(held), draw: next(held)}
    edges = [edge for unit in units for edge in itertools.pairwise(unit)]
    edges += [(units[0][-1], units[2][0]), (units[1][-1], units[2][0]), (units[2][-1], paint), (units[2][-1], draw)]
    ranks_of = {"near": near, "far": far, "backbone": backbone, "paint": 1, "draw": 1}
    counts = zip(("near", "far", "backbone"), (near, far, backbone), chunks, strict=True)
    replicas_by_unit = {
        unit: PipelineReplicas(
            _of_pipeline_replicas([stage_devices[unit, rank] for rank in range(ranks_of[unit])], len(set(taken))), taken
        )
        for unit, taken in pipeline_replicas.items()
    }
    pp = {name: pp for name, pp, count in counts if count > 1}
    return StageGraph(stage_devices, tuple(edges), pp, pipeline_replicas=replicas_by_unit)


def replaced(device_set: frozenset[int], count: int) -> frozenset[int]:
    """The set with every device replaced by several."""
    return frozenset(count * device + turn for device in device_set for turn in range(count))


def _of_pipeline_replicas(ranks: list[frozenset[int]], count: int) -> tuple[frozenset[int], ...]:
    """The devices of each rank of each pipeline replica, given those of each rank of all pipeline replicas."""
    return tuple(
        frozenset(sorted(held)[pipeline_replica::count]) for pipeline_replica in range(count) for held in ranks
    )


@st.composite
def recipes(draw: st.DrawFn) -> tuple:
    """Arguments of `build_op_graph`."""
    depths = draw(st.tuples(*[st.integers(1, 3)] * 3))
    chunks = draw(st.tuples(st.just(1), st.integers(1, 2), st.integers(1, 3)))
    held = st.frozensets(st.integers(0, 5), min_size=1, max_size=2)
    few = st.lists(held, min_size=1, max_size=2).flatmap(
        lambda sets: st.tuples(*[st.sampled_from(sets)] * (sum(depths) + 2))
    )
    device_sets = draw(st.none() | st.tuples(*[held] * (sum(depths) + 2)) | few)
    stage = st.integers(0, sum(pp * count for pp, count in zip(depths, chunks, strict=True)) + 1)
    shares = draw(st.lists(st.lists(stage, min_size=2, max_size=2, unique=True), max_size=1))
    trained, microbatches = draw(st.frozensets(stage)), draw(st.integers(1, 7))
    return depths, device_sets, chunks, trained, shares, microbatches, draw(pipeline_replicas(microbatches))


@st.composite
def pipeline_replicas(draw: st.DrawFn, microbatches: int) -> dict[str, tuple[int, ...]]:
    """For some units of a fan, which of up to three pipeline replicas takes each microbatch."""
    pipeline_replicas = {}
    for unit in draw(st.lists(st.sampled_from(["near", "far", "backbone", "paint"]), max_size=2, unique=True)):
        taken = draw(st.lists(st.integers(0, 2), min_size=microbatches, max_size=microbatches))
        numbers = sorted(set(taken))
        if len(numbers) > 1:
            pipeline_replicas[unit] = tuple(map(numbers.index, taken))
    return pipeline_replicas


def build_op_graph(recipe: tuple) -> OpGraph:
    """A step over a fan of any depths, chunks and replicas, on shared devices, with frozen stages or tied ones."""
    depths, device_sets, chunks, trained, shared, microbatches, pipeline_replicas = recipe
    graph = fan(*depths, device_sets, chunks, pipeline_replicas)
    trains = frozenset(graph.stages[index] for index in trained)
    shares = tuple((graph.stages[owner], graph.stages[borrower]) for owner, borrower in shared)
    return OpGraph(
        stage_graph=graph,
        microbatches=microbatches,
        backward_stages=graph.with_descendants(trains),
        trained_stages=trains,
        tied_stages=shares,
    )


def training(graph: StageGraph, microbatches: int) -> OpGraph:
    """A step in which every stage trains."""
    return OpGraph(
        stage_graph=graph,
        microbatches=microbatches,
        backward_stages=frozenset(graph.stages),
        trained_stages=frozenset(graph.stages),
    )
