"""One unit with a chain of all modules, balanced stages, and as little recomputation as fits.

OmniBal's orchestration (arXiv 2407.20761, sections 4.2 and 4.3): one (dp, tp, pp) for encoder, backbone and generator,
whose layers are divided among the stages by what they take, with the recomputation of each layer that the memory of its
rank allows. A module that the backbone's tp does not divide has fewer tensor ranks and more replicas on the same
devices (`Parallelism.module_tp`); a microbatch then has a row for each of these replicas, or several.

Layouts are tried in the order of what a step would take if the work of a microbatch could be divided at will, until the
next would take longer than the best found. For each layout, `stages/chain_stages.py` chooses the partition and the
recomputation, without chunks and with as many as shorten the step. The plans with the shortest estimates are returned,
and partitions near theirs (`stages/anchor_search.py`): the partition is the best by mean microbatches, and what a step
waits for beyond that, only the simulation sees. Where none of them fits when it is simulated, the others follow.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sharding.planners.chain_problem import ChainProblem
from sharding.planners.infeasible import unfit_chain_error
from sharding.planners.layouts.hop_seconds import rank_hop_seconds, ring_waits
from sharding.planners.layouts.schedule_fields import MOST_EXTRA, with_stage_seconds
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.planners.stages.anchor_search import near_partitions
from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_stages import ChainStages, balanced_stages, rank_bytes
from sharding.planners.stages.layer_chain import LayerChain
from sharding.plans.plan import Plan

_PARTITIONED = 10  # layouts that are partitioned at most, among the layouts that fit
_UNSURE = 0.1  # share by which a layout may take longer than the shortest by the estimate
_WORTHWHILE = STEP_SLACK / 4  # share by which more chunks have to shorten a step
_NEAR = 16  # partitions near that of a layout that are simulated at most
_NEAR_OPS = 3_000  # of all of them together
_SIMULATED_OPS = 12_000  # forwards and backwards of all plans together; the first is simulated however many it has


class _Balanced(NamedTuple):
    """A layout with the stages that are best for it.

    Attributes:
        seconds: The estimate of a step.
        fill: Seconds of filling and draining the pipeline in it, where they can be told from others.
        once: Seconds of gathers, reductions and updates in it.
        layout: The layout.
        chain: Its layers.
        stages: Its stages.
    """

    seconds: float
    fill: float
    once: float
    layout: ChainLayout
    chain: LayerChain
    stages: ChainStages


def plans(problem: PlanningProblem) -> list[Plan]:
    """The plans with the shortest estimated steps, and those of partitions near theirs."""
    chosen = _chosen(problem)
    return [_scheduled_plan(problem, candidate) for candidate in (*chosen, *_near(problem, chosen))]


def exact_plans(problem: PlanningProblem) -> list[Plan]:
    """The plans of `plans` whose partitions are the best by mean microbatches."""
    return [_scheduled_plan(problem, candidate) for candidate in _chosen(problem)]


def spare_plans(problem: PlanningProblem) -> Iterator[Plan]:
    """The found plans that `plans` leaves out, by their estimates: the drawn rows may fit only these."""
    candidates = _best_layouts(ChainProblem(problem))
    chosen = _shortest(candidates)
    yield from (_scheduled_plan(problem, candidate) for candidate in candidates if candidate not in chosen)


def _chosen(problem: PlanningProblem) -> list[_Balanced]:
    chain = ChainProblem(problem)
    candidates = _best_layouts(chain)
    if not candidates:
        raise unfit_chain_error(chain)
    return _shortest(candidates)


def _shortest(candidates: list[_Balanced]) -> list[_Balanced]:
    """Returns the layouts not much slower than the first, as many as are simulated in a reasonable time."""
    chosen: list[_Balanced] = []
    ops = 0
    for candidate in candidates:
        more = _op_count(candidate.layout)
        if candidate.seconds <= candidates[0].seconds * (1 + _UNSURE) and (not chosen or ops + more <= _SIMULATED_OPS):
            chosen.append(candidate)
            ops += more
    return chosen


def _near(problem: PlanningProblem, chosen: list[_Balanced]) -> list[_Balanced]:
    """Returns partitions near those of layouts without chunks, as many as are simulated in a reasonable time."""
    near: list[_Balanced] = []
    ops = 0
    for candidate in chosen:
        layout, chain, counts = candidate.layout, candidate.chain, candidate.stages.counts
        most = min(_NEAR, (_NEAR_OPS - ops) // _op_count(layout))
        if layout.chunks == 1 < layout.pp and most > 0:
            found = near_partitions(chain, layout, counts, problem.cluster.usable_memory, most)
            near += [candidate._replace(stages=stages) for stages in found]
            ops += len(found) * _op_count(layout)
    return near


def _op_count(layout: ChainLayout) -> int:
    """Forwards and backwards of a step."""
    return 2 * layout.microbatches * layout.stage_count


def _best_layouts(chain: ChainProblem) -> list[_Balanced]:
    """The layouts with the shortest estimates, best first; none if nothing fits."""
    layouts = list(chain.sizes.layouts(chain.problem.devices))
    most_chunks = [chain.sizes.chunks_of(layout) for layout in layouts]
    add_chunks, bounds = _with_waiting_chunks, [chain.least_seconds(layout) for layout in layouts]
    if not chain.problem.rendezvous:
        add_chunks = _with_chunks
        bounds = [
            chain.least_seconds(dataclasses.replace(layout, chunks=chunks))
            for layout, chunks in zip(layouts, most_chunks, strict=True)
        ]
    candidates: list[_Balanced] = []
    partitioned, best = 0, np.inf
    for index in np.argsort(bounds, kind="stable").tolist():
        layout = layouts[index]
        if bounds[index] > best * (1 + _UNSURE) or partitioned == _PARTITIONED:
            break
        if chain.least_bytes(layout) > chain.problem.cluster.usable_memory:
            continue
        whole = _balance(chain, layout)
        if whole is None:
            continue  # with chunks, more microbatches are in flight
        with_chunks = add_chunks(chain, whole, most_chunks[index], best)
        candidates += [whole, *with_chunks]
        best = min(best, *(balanced.seconds for balanced in (whole, *with_chunks)))
        partitioned += 1
    return sorted(candidates, key=lambda balanced: balanced.seconds)


def _with_chunks(chain: ChainProblem, whole: _Balanced, most: int, best: float) -> list[_Balanced]:
    """Returns a layout with two chunks and with as many as shorten its step, where each fits and may be the shortest.

    With v chunks filling and draining the pipeline takes 1 / v of the seconds. The first number tried is the one beyond
    which more cannot shorten the step by `_WORTHWHILE`; where it does not fit, or its partition is so uneven that it
    takes longer than that, half as many are tried. Two are always: the shorter the ops of uneven stages, the more ranks
    wait for each other, which only the simulation sees.

    Args:
        chain: The problem.
        whole: The layout without chunks.
        most: The most chunks that it can have.
        best: Seconds of the shortest step so far.
    """
    worthwhile = _WORTHWHILE * whole.seconds
    candidates: list[_Balanced] = []
    chunks = min(most, math.ceil(whole.fill / worthwhile))
    while chunks > 1:
        expected = whole.seconds - whole.fill * (1 - 1 / chunks)
        if expected + worthwhile > min(best, whole.seconds):
            break
        balanced = _balance(chain, dataclasses.replace(whole.layout, chunks=chunks))
        candidates += [balanced] if balanced else []
        is_even = balanced is not None and balanced.seconds <= expected + worthwhile
        chunks = min(2, chunks - 1) if is_even else chunks // 2
    return candidates


def _with_waiting_chunks(chain: ChainProblem, whole: _Balanced, most: int, best: float) -> list[_Balanced]:
    """Returns a layout with chunks whose ranks wait for each other, where they may still be worthwhile.

    Of the most chunks, half as many, and so on, the number is taken with which a step is the shortest if all chunks are
    alike.
    """
    hops = whole.stages.hop_seconds(whole.chain)
    of_chunk = 4 * float(hops.mean()) if hops.size else 0.0  # what is sent and received, forward and back
    steady = whole.seconds - whole.fill
    expected: dict[int, float] = {}
    while most > 1:
        waiting = whole.layout.microbatches * most * of_chunk + ring_waits(most) * steady
        expected[most] = steady + whole.fill / most + waiting
        most //= 2
    chunks = min(expected, key=expected.__getitem__, default=1)
    if chunks == 1 or expected[chunks] + _WORTHWHILE * whole.seconds > min(best, whole.seconds):
        return []
    balanced = _balance(chain, dataclasses.replace(whole.layout, chunks=chunks))
    return [balanced] if balanced else []


def _balance(chain: ChainProblem, layout: ChainLayout) -> _Balanced | None:
    """The stages of a layout, with an estimate of the step; None if it does not fit.

    seconds = microbatches * slowest rank + (all ranks - slowest rank) / chunks + gather + reduction + update

    Where hops occupy the devices at both ends, they count in the seconds of ranks, and with chunks also their
    waits for each other (`ring_waits`).
    """
    layers = chain.layers(layout, MOST_EXTRA * layout.chunks)
    stages = balanced_stages(layers, layout, chain.problem.cluster.usable_memory)
    if stages is None:
        return None
    work = chain.problem.unit_work(stages.plan(layers, layout).units[0], layout.microbatches)
    first = work[:: layout.pp]
    once = sum(stage.gather + stage.reduce for stage in first) + max(stage.update for stage in work)
    ranks = stages.rank_seconds(layers, layout.pp)
    rendezvous = chain.problem.rendezvous
    if rendezvous:
        hops = stages.hop_seconds(layers) * [1 + stage.backward.any() for stage in work[:-1]]
        ranks = ranks * (1 + ring_waits(layout.chunks)) + rank_hop_seconds(hops, layout.pp)
    fill = float(ranks.sum() - ranks.max()) / layout.chunks
    return _Balanced(float(layout.microbatches * ranks.max()) + fill + once, fill, once, layout, layers, stages)


def _scheduled_plan(problem: PlanningProblem, balanced: _Balanced) -> Plan:
    """The plan, with as many microbatches in flight as memory is left for, and the seconds of chunks."""
    layout, chain, stages = balanced.layout, balanced.chain, balanced.stages
    plan = stages.plan(chain, layout)
    if layout.chunks > 1:
        plan = with_stage_seconds(problem, plan)
    most = min(MOST_EXTRA, layout.pp - 1 if layout.chunks == 1 else MOST_EXTRA, layout.microbatches - 1)
    counts = (per_chunk * layout.chunks for per_chunk in range(most, 0, -1))
    memory = problem.cluster.usable_memory
    extra = next((count for count in counts if rank_bytes(chain, layout, stages, count).max() <= memory), 0)
    return dataclasses.replace(plan, units=(plan.units[0].with_hints(extra_microbatches=extra),))
