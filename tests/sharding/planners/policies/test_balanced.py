"""Balanced plans: one unit, all modules, stages over module borders, within memory, with unlike tensor ranks."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks.planner.edits.problems import PROBLEMS, edited_problem
from configs.architectures import ModelConfig
from sharding.costs.profiled import ProfiledCostModel
from sharding.planners.chain_problem import ChainProblem
from sharding.planners.policies import balanced
from sharding.planners.policies.auto import plan_automatically, run_policy
from sharding.planners.policies.best_plan import best_simulated
from sharding.planners.problem import STEP_SLACK
from sharding.planners.stages.chain_stages import rank_bytes, recomputed_stages
from sharding.planners.stages.layer_chain import spread
from sharding.planners.stages.partition_baselines import PARTITION_METHODS
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan
from tests.profiles import synthetic_profile
from tests.sharding.planners.problems import AUDIO, BACKBONE, GENERATOR, VISION, build_problem, problem, recipes

UNEVEN = ModelConfig((dataclasses.replace(VISION, heads=1, depth=5),), BACKBONE, ())


@given(recipes())
@settings(max_examples=10, deadline=None)
def test_plans_are_one_unit_within_memory(recipe):
    case = build_problem(recipe)
    try:
        plans = balanced.plans(case)
    except PlanError:
        return
    for plan in plans:
        (unit,) = plan.units
        assert unit.modules == case.graph.names
        resolve_plan(plan, case.graph, case.devices)
        assert case.memory_fraction(case.simulate(plan)) <= 1 + 1e-9
        assert all(case.rows % (plan.microbatches * unit.replicas_of(name)) == 0 for name in unit.modules)
        assert unit.parallelism.chunks in case.chunk_choices


def test_a_module_that_the_tensor_ranks_do_not_divide_has_its_own():
    case = dataclasses.replace(problem(UNEVEN, devices=4, rows=16), tensor_sizes=(2,))
    with pytest.raises(
        PlanError, match="vision takes none of the tensor-parallel sizes 2, because none divides heads 1,"
    ):
        balanced.plans(case)
    case = dataclasses.replace(case, tensor_sizes=(1, 2), recompute_choices=("none",))
    sizes = ChainProblem(case).sizes
    assert sizes.tensor_sizes == ((1, 1), (1, 2))
    layouts = [layout for layout in sizes.layouts(4) if layout.tp == 2]
    assert layouts and all(layout.module_tp == (1, 2) for layout in layouts)
    for layout in layouts:
        assert layout.replicas_of("vision") == 2 * layout.dp
        assert 16 // layout.microbatches % layout.replicas_of("vision") == 0


@pytest.mark.parametrize("memory", [1e9, 1.1e7])
def test_its_slowest_rank_is_no_slower_than_that_of_partitions_that_see_less(memory):
    case = problem(UNEVEN, devices=3, rows=8, memory=memory)
    chain = ChainProblem(case)
    for layout in chain.sizes.layouts(3):
        if layout.pp == 1:
            continue
        layers = chain.layers(layout, 0)
        best = balanced.balanced_stages(layers, layout, memory)
        for method in PARTITION_METHODS.values():
            counts = method(layers, layout.pp)
            other = recomputed_stages(layers, layout, counts, memory) if counts else None
            if other:
                assert best is not None
                slowest = best.rank_seconds(layers, layout.pp).max()
                assert slowest <= other.rank_seconds(layers, layout.pp).max() * (1 + 1e-9)
                assert spread(best.rank_seconds(layers, layout.pp)) >= 1
        assert best is None or rank_bytes(layers, layout, best).max() <= memory


def test_less_memory_recomputes_more_and_unequally():
    model = ModelConfig((dataclasses.replace(VISION, depth=8),), dataclasses.replace(BACKBONE, depth=8), ())
    roomy, tight = (
        run_policy(dataclasses.replace(problem(model, devices=2, rows=8, memory=memory), tensor_sizes=(1,)), "balanced")
        for memory in (1e9, 2.15e7)
    )
    assert set(roomy.plan.units[0].recompute) == {"none"}
    (unit,) = tight.plan.units
    kept = [np.mean([policy == "none" for policy in unit.layer_recompute(stage)]) for stage in range(unit.stage_count)]
    assert min(kept) < 1 and kept[0] < kept[-1]  # the first rank holds the most microbatches
    assert roomy.timeline.step < tight.timeline.step


def test_plans_beyond_those_that_are_simulated_first_are_spare(monkeypatch):
    model = ModelConfig((dataclasses.replace(VISION, heads=1, depth=5),), dataclasses.replace(BACKBONE, depth=8), ())
    tight = problem(model, devices=6, rows=8, memory=1.4833840576745989e7, spread=1.0)
    case = dataclasses.replace(tight, tensor_sizes=(1, 2))
    for ops in ("_SIMULATED_OPS", "_NEAR_OPS"):
        monkeypatch.setattr(balanced, ops, 0)  # as where a step has very many microbatches
    monkeypatch.setattr(balanced, "_UNSURE", 0.3)
    (first,), spare = balanced.plans(case), list(balanced.spare_plans(case))
    assert len(spare) >= 2 and first not in spare
    fitting = [plan for plan in (first, *spare) if case.memory_fraction(case.simulate(plan)) <= 1]
    assert dataclasses.replace(run_policy(case, "balanced").plan, made_for=fitting[0].made_for) == fitting[0]


def test_a_partition_near_the_best_by_mean_microbatches_may_have_the_shortest_step():
    """Where it waits for hops, which the seconds of stages leave out."""
    case = edited_problem(PROBLEMS["qwen3_vl_30b_a3b_slow_network"])
    exact, plans = balanced.exact_plans(case), balanced.plans(case)
    assert plans[: len(exact)] == exact and len(plans) > len(exact)
    near = {(plan.microbatches, plan.units[0].parallelism) for plan in plans[len(exact) :]}
    assert near <= {(plan.microbatches, plan.units[0].parallelism) for plan in exact}
    of_exact, of_all = (best_simulated(case, found).timeline.step for found in (exact, plans))
    assert of_all < 0.95 * of_exact


def deep_problem(chunks):
    model = ModelConfig((dataclasses.replace(VISION, depth=9),), dataclasses.replace(BACKBONE, depth=9), ())
    tight = problem(model, devices=2, rows=8, memory=2.9e7, chunks=chunks)
    return dataclasses.replace(tight, tensor_sizes=(1,))


def test_layouts_have_two_chunks_and_as_many_as_shorten_the_step():
    case = deep_problem(tuple(range(1, 10)))
    sizes = ChainProblem(case).sizes
    most = {layout.pp: sizes.chunks_of(layout) for layout in sizes.layouts(2) if layout.microbatches % layout.pp == 0}
    assert most == {1: 1, 2: 9}
    chunked = [plan for plan in balanced.plans(case) if plan.units[0].parallelism.chunks > 1]
    assert {plan.units[0].parallelism.chunks for plan in chunked} == {2, 4}  # 9 do not fit
    assert all(plan.schedule == "interleaved" and plan.units[0].schedule_hints.forward_seconds for plan in chunked)
    alone = run_policy(deep_problem((1,)), "balanced").timeline.step
    assert run_policy(case, "balanced").timeline.step <= alone * (1 + STEP_SLACK)


def test_spare_memory_holds_more_microbatches():
    model = ModelConfig((VISION,), BACKBONE, ())
    roomy = balanced.plans(dataclasses.replace(problem(model, devices=2, rows=8), tensor_sizes=(1,)))
    assert all(plan.units[0].schedule_hints.extra_microbatches == 1 for plan in roomy if plan.units[0].pp == 2)


def test_modules_of_one_unit_have_one_cp():
    case = problem(ModelConfig((VISION,), BACKBONE, (GENERATOR,)), experts=4, ranks=(("backbone", 2, 1),))
    reason = run_policy(case, "balanced").reason
    assert "have one cp, but they are given vision 1, backbone 2, generator 1" in reason
    both = problem(ModelConfig((AUDIO,), BACKBONE, ()), rows=4, ranks=(("audio", 2, 1), ("backbone", 2, 1)))
    (unit,) = run_policy(both, "balanced").plan.units
    assert unit.parallelism.cp == 2


def test_measured_costs_leave_out_unlike_tensor_sizes():
    """A profile has no times of gathers of rows between modules of a stage."""
    case = problem(UNEVEN, devices=4, rows=16)
    case = dataclasses.replace(
        case,
        costs=ProfiledCostModel(synthetic_profile(case.graph, "toy", (1, 2))),
        tensor_sizes=(1, 2),
        recompute_choices=("none",),
    )
    assert ChainProblem(case).sizes.tensor_sizes == ((1, 1),)
    (unit,) = run_policy(case, "balanced").plan.units
    assert unit.parallelism.tp == 1
    assert plan_automatically(case).timeline.step <= run_policy(case, "balanced").timeline.step * (1 + STEP_SLACK)
