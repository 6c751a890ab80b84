"""A lower bound of a simulated step from its costs alone, without a schedule.

Policies order plans by the bound, and leave out the simulation of plans that cannot be the best.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from sharding.costs.step_costs import StepWork
from sharding.plans.resolved.stage_graph import PipelineRank, StageId
from sharding.schedules.ops import OpGraph


def least_step_seconds(op_graph: OpGraph, work: StepWork, *, bundles: bool = True) -> float:
    """Seconds that no schedule of a training step takes less than.

        max_rank(arrival + work + return) + norm + max_rank(update)

    `work` is all forwards and backwards of a pipeline rank of one pipeline replica, on the slowest of its replicas.
    Before them or between them its devices gather all its weights, and no earlier than the shortest microbatch has
    arrived through the stages before it (`arrival`) do they start. After its last op the shortest microbatch still
    returns through these stages, and the rank reduces all its gradients, meanwhile or before (`return`); where
    gradients of weights are ops of their own, only the reductions count. Of ranks on the same devices, or on some of
    them, `work` is also what one of these devices works at least. With bundles it is what it computes: one rank's
    computation may take place in another's waits and gathers.

    Args:
        op_graph: The ops of a step.
        work: Seconds of the ops (`StepWork`).
        bundles: Whether the schedule may bundle ops (`SchedulePolicy.bundles`).
    """
    bound, ranks = _StepBound(op_graph, work), op_graph.stage_graph.stages_of
    updates = max(bound.once_per_step(rank, "update") for rank in ranks)
    devices = op_graph.stage_graph.rank_devices
    ends = [bound.end_of_rank(rank) for rank in ranks]
    for shared in set(devices.values()):
        inside = [rank for rank in ranks if devices[rank] <= shared]
        if len(inside) > 1:
            ends.append(bound.end_of_ranks(inside, len(shared), "computing" if bundles else "work"))
    return max(ends) + work.global_norm + updates


class _StepBound:
    """How early each stage can start, and how much follows its last op."""

    def __init__(self, op_graph: OpGraph, work: StepWork) -> None:
        self._op_graph, self._graph, self._work = op_graph, op_graph.stage_graph, work
        self._arrival: dict[StageId, float] = {}
        self._return: dict[StageId, float] = {}
        self._of_ranks: dict[tuple[tuple[StageId, ...], str], Float[np.ndarray, "c i"]] = {}
        for stage in self._graph.stages:
            arrivals = [self._arrive(source, stage) for source in self._graph.sources[stage]]
            self._arrival[stage] = max([*arrivals, work.stages[stage].gather])
        has_backward = op_graph.backward_stages
        for stage in self._graph.stages:
            if stage in has_backward:
                sources = [source for source in self._graph.sources[stage] if source in has_backward]
                # The wgrads of a stage, which count as its work, may run while its last gradient goes back.
                is_split = stage in op_graph.split_stages
                returns = [] if is_split else [self._go_back(source, stage) for source in sources]
                self._return[stage] = max([*returns, work.stages[stage].reduce * (stage in op_graph.trained_stages)])
        for stage in reversed(self._graph.stages):
            if stage not in has_backward:
                returns = [self._go_on(stage, target) for target in self._graph.targets[stage]]
                self._return[stage] = max(returns, default=0.0)

    def _arrive(self, source: StageId, target: StageId) -> float:
        """When the shortest microbatch can reach the target of an edge."""
        return self._arrival[source] + self._work.stages[source].least_forward + self._work.hops[source, target]

    def _go_back(self, source: StageId, target: StageId) -> float:
        """Seconds that follow the last backward of the target of an edge."""
        return self._work.gradient_hops[source, target] + self._least_backward(source) + self._return[source]

    def _go_on(self, source: StageId, target: StageId) -> float:
        """Seconds that follow the last forward of the source of an edge, where it runs no backward."""
        forward = self._work.stages[target].least_forward
        return self._work.hops[source, target] + forward + self._least_backward(target) + self._return[target]

    def _least_backward(self, stage: StageId) -> float:
        """Seconds of a stage's shortest backward; 0 if it leaves its wgrad for later, as its share is not known."""
        is_whole = stage in self._op_graph.backward_stages - self._op_graph.split_stages
        return self._work.stages[stage].least_backward if is_whole else 0.0

    def once_per_step(self, rank: PipelineRank, kind: str) -> float:
        """Seconds of the gathers, reductions or updates of a rank's stages."""
        stages = self._graph.stages_of[rank]
        if kind != "gather":
            stages = tuple(stage for stage in stages if stage in self._op_graph.trained_stages)
        return sum((getattr(self._work.stages[stage], kind) for stage in stages), start=0.0)

    def end_of_rank(self, rank: PipelineRank) -> float:
        """When the norm can start, as far as one rank and what follows its last op are concerned."""
        start = max(self._arrival_at(rank), self.once_per_step(rank, "gather"))
        work = self._rank_seconds(rank, "forward") + self._rank_seconds(rank, "backward")
        return start + float(work.max()) + max(self._return_from(rank), self.once_per_step(rank, "reduce"))

    def end_of_ranks(self, ranks: Sequence[PipelineRank], count: int, field: str) -> float:
        """When the norm can start as far as ranks are concerned that share devices, each on some or on all `count`.

        `field` of `StageWork` is what they keep the devices from other ranks.
        """
        devices = self._graph.rank_devices
        on_all = [self._rank_seconds(rank, field) for rank in ranks if len(devices[rank]) == count]
        on_some = sum(
            float(np.mean(self._rank_seconds(rank, field))) * len(devices[rank]) / count
            for rank in ranks
            if len(devices[rank]) < count
        )
        work = max(least_on_one_device(on_all), sum(float(np.mean(seconds)) for seconds in on_all) + on_some)
        start = min(map(self._arrival_at, ranks))
        return start + work + min(map(self._return_from, ranks))

    def _arrival_at(self, rank: PipelineRank) -> float:
        return min(self._arrival[stage] for stage in self._graph.stages_of[rank])

    def _return_from(self, rank: PipelineRank) -> float:
        return min(self._return[stage] for stage in self._graph.stages_of[rank])

    def _rank_seconds(self, rank: PipelineRank, field: str) -> Float[np.ndarray, " i"]:
        """Seconds of all forwards and backwards on each replica of a rank, by a field of `StageWork`."""
        stages = self._graph.stages_of[rank]
        pipeline_replica = self._graph.ranks_of[stages[0]].index(rank)
        return self._seconds_of_ranks(stages, field)[pipeline_replica]

    def _seconds_of_ranks(self, stages: tuple[StageId, ...], field: str) -> Float[np.ndarray, "c i"]:
        """As `_rank_seconds`, for the pipeline ranks with these stages, one in each pipeline replica of their unit."""
        if (stages, field) not in self._of_ranks:
            seconds = sum((getattr(self._work.stages[stage], field) for stage in stages), start=np.zeros(1))
            count = self._graph.pipeline_replica_count(stages[0][0])
            self._of_ranks[stages, field] = seconds.reshape(count, -1)
        return self._of_ranks[stages, field]


def least_on_one_device(work: Sequence[Float[np.ndarray, " _"]]) -> float:
    """Seconds that some device takes at least, of ranks on the same devices, which replica of each it is in or not.

    Args:
        work: Seconds of each rank's replicas, which have equally many devices.
    """
    mean_seconds = sum(float(np.mean(seconds)) for seconds in work)
    least = sum(float(np.min(seconds)) for seconds in work)
    return max(mean_seconds, *(float(np.max(seconds) - np.min(seconds)) + least for seconds in work))
