"""Which pipeline replica of an encoder takes which microbatch of a `colocated` step."""

from sharding.schedules.bubbles.assignment import best_division
from sharding.schedules.colocation.colocated_step import colocated_step
from sharding.schedules.ops import OpGraph


def assign_microbatches(op_graph: OpGraph) -> dict[str, tuple[int, ...]]:
    """For every encoder with pipeline replicas, which takes each microbatch, so that a `colocated` step is short.

    Args:
        op_graph: A step with as many pipeline replicas as there shall be; how it divides the microbatches does not
            matter.
    """
    step = colocated_step(op_graph)
    if step is None:
        return {}
    divisions = [
        (filler.seconds(pipeline_replicas), pipeline_replicas)
        for filler in step.fillers
        for pipeline_replicas in [best_division(filler)]
    ]
    _, best = min(divisions, key=lambda division: division[0])
    return {unit: taken for unit, taken in best.items() if unit in op_graph.stage_graph.pipeline_replicas}
