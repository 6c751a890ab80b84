"""Pipelines small enough to try every order."""

import itertools

import numpy as np

from sharding.balancing.reordering.replay import PipelineMicrobatchSeconds, ScheduleReplay, build_replay
from sharding.schedules.interleaved_1f1b import interleaved
from sharding.schedules.one_f_one_b import one_f_one_b
from tests.sharding.stage_graphs import ring, training
from tests.sharding.steps import stage_costs, step_costs


def skewed(
    places: int, chunks: int, microbatches: int, seed: int, pipelines: int = 1
) -> tuple[ScheduleReplay, PipelineMicrobatchSeconds]:
    """A chain whose first and last stage, an encoder and a generator, differ by microbatch; all train."""
    rng = np.random.default_rng(seed)
    graph = ring(places, chunks)
    work = training(graph, microbatches)
    sizes = {0: rng.lognormal(0, 0.8, (microbatches, pipelines))}
    sizes[len(graph.stages) - 1] = rng.lognormal(0, 0.8, (microbatches, pipelines))
    alike = np.ones((microbatches, pipelines))
    stages = {node: stage_costs(sizes.get(node[1], alike), 2 * sizes.get(node[1], alike)) for node in graph.stages}
    costs = step_costs(work, stages, hop=0.01)
    devices = {node: np.arange(pipelines)[:, None] + pipelines * (node[1] % places) for node in graph.stages}
    replay = build_replay(devices, (interleaved if chunks > 1 else one_f_one_b)(work), costs, pipelines)
    return replay, replay.pipeline_microbatch_seconds(costs)


def all_seconds(replay: ScheduleReplay, table: PipelineMicrobatchSeconds) -> np.ndarray:
    """Seconds of a step in every order of one pipeline's microbatches."""
    return replay.step_seconds(table, np.array(list(itertools.permutations(range(replay.microbatches)))))
