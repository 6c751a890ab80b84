"""Plans of every policy run, fit and take no less than their lower bounds; if nothing fits, the error says why."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings

from configs.architectures import ModelConfig
from configs.common.errors import UserError
from sharding.planners.infeasible import min_devices
from sharding.planners.layouts.placement import make_unit, place_units
from sharding.planners.policies import disaggregated, rigid
from sharding.planners.policies.auto import (
    LOCAL_SEARCH,
    PLANNING_POLICIES,
    best_result,
    is_trainable,
    plan_automatically,
    run_local_search,
    run_policy,
)
from sharding.planners.policies.disaggregated import flops_shares
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan
from tests.sharding.planners.problems import AUDIO, BACKBONE, GENERATOR, VISION, build_problem, problem, recipes


def busiest(timeline):
    """A lower bound of a step: the busiest replica of any stage, or one microbatch through all stages."""
    stages = timeline.costs.stages
    alone = max(
        float((stage_costs.forward + stage_costs.backward).sum(axis=0).max()) for stage_costs in stages.values()
    )
    backbone = [stage_costs for node, stage_costs in stages.items() if node[0] == "backbone"]
    return max(alone, sum(float((stage_costs.forward + stage_costs.backward).min()) for stage_costs in backbone))


@given(recipes())
@settings(max_examples=4, deadline=None)
def test_plans_are_valid_fit_and_take_no_less_than_their_bounds(recipe):
    case = build_problem(recipe)
    for policy in PLANNING_POLICIES:
        outcome = run_policy(case, policy)
        if not outcome.simulated:
            assert outcome.reason
            continue
        plan, timeline = outcome.plan, outcome.timeline
        assert max(device for unit in plan.units for device in unit.devices) < case.devices
        assert max(timeline.lane_peak_memory(lane) for lane in timeline.lanes) <= case.cluster.usable_memory
        assert timeline.step >= busiest(timeline) * (1 - 1e-9)
        if any(unit.parallelism.cp > 1 for unit in plan.units):
            resolve_plan(plan, case.graph, case.devices)
        elif not policy.startswith("rigid"):
            resolve_plan(plan, case.graph, case.devices, case.rows)


def test_auto_takes_the_shortest_step_of_trainable_plans():
    case = problem(devices=12, spread=0.6)
    outcomes = [run_policy(case, policy) for policy in PLANNING_POLICIES]
    outcomes.append(run_local_search(case, outcomes))
    best = best_result(case, outcomes)
    able = [outcome for outcome in outcomes if outcome.simulated and is_trainable(case, outcome.plan)]
    assert len(able) >= 2
    assert best.timeline.step <= min(outcome.timeline.step for outcome in able) * 1.001
    seen = []
    assert plan_automatically(case, seen.append).plan == best.plan
    assert [result.policy for result in seen[: len(PLANNING_POLICIES)]] == list(PLANNING_POLICIES)
    changed = seen[len(PLANNING_POLICIES) :]
    assert {result.policy for result in changed} == {LOCAL_SEARCH}
    steps = [result.timeline.step for result in changed if result.simulated]
    assert steps == sorted(steps, reverse=True) and changed[-1].changes == outcomes[-1].changes


def test_rigid_replicates_encoders_inside_the_tensor_group():
    case = problem(devices=12, rows=4)
    plan = rigid.plans(case, pp=1)[0]
    backbone = plan.unit_of("backbone")
    assert (backbone.parallelism.tp, backbone.parallelism.dp, backbone.pp) == (2, 2, 1)
    for name in ("vision", "generator"):
        assert (plan.unit_of(name).parallelism.tp, plan.unit_of(name).parallelism.dp) == (
            1,
            backbone.parallelism.tp * backbone.parallelism.dp,
        )
    assert plan.device_count == 12 and plan.microbatches == 2
    with pytest.raises(PlanError, match="not divisible"):
        resolve_plan(plan, case.graph, case.devices, case.rows)


def test_the_first_stage_holds_all_encoders():
    plan = rigid.first_stage_plans(problem(devices=8, rows=4), pp=2)[0]
    first = plan.unit_of("vision")
    assert first.modules == ("vision", "backbone") and first.layers == (VISION.depth + 2, 2)
    several = problem(ModelConfig((VISION, AUDIO), BACKBONE, (GENERATOR,)), devices=8, rows=4)
    plan = rigid.first_stage_plans(several, pp=2)[0]
    backbone = plan.unit_of("backbone")
    assert plan.unit_of("vision").devices == plan.unit_of("audio").devices == backbone.stage_devices(0)


def test_policies_keep_fixed_ranks():
    case = problem(devices=28, rows=4, experts=4, ranks=(("vision", 2, 1), ("backbone", 2, 2)))
    outcomes = [run_policy(case, policy) for policy in ("rigid", "ratio", "disaggregated")]
    for outcome in outcomes:
        backbone, eyes = outcome.plan.unit_of("backbone"), outcome.plan.unit_of("vision")
        assert (backbone.parallelism.cp, backbone.parallelism.ep) == (2, 2)
        assert (eyes.parallelism.cp, eyes.parallelism.ep) == (2, 1)
        assert backbone.parallelism.dp % 2 == 0
        assert len(backbone.devices) == backbone.parallelism.dp * 2 * backbone.parallelism.tp * backbone.pp
    assert best_result(case, outcomes).timeline.step == min(outcome.timeline.step for outcome in outcomes)


def test_expert_ranks_alone_can_be_trained():
    case = problem(devices=12, rows=4, experts=4, ranks=(("backbone", 1, 4),))
    best = run_policy(case, "disaggregated")
    assert best.plan.unit_of("backbone").parallelism.ep == 4 and is_trainable(case, best.plan)


def test_rigid_replicates_encoders_over_a_replicas_sequence_ranks_too():
    case = problem(devices=12, rows=4, ranks=(("backbone", 2, 1),))
    plan = rigid.plans(case, pp=1)[0]
    backbone = plan.unit_of("backbone")
    assert (backbone.parallelism.tp, backbone.parallelism.cp, backbone.parallelism.dp) == (2, 2, 1)
    assert (plan.unit_of("vision").parallelism.dp, plan.unit_of("vision").parallelism.cp) == (
        4,
        1,
    ) and plan.device_count == 12


@pytest.mark.parametrize(
    ("policy", "ranks", "message"),
    [
        ("rigid_first_stage", (("backbone", 2, 1),), "vision shares backbone's first stage and so its ranks, cp 2"),
        ("rigid", (("vision", 2, 1),), "its cp 2 must divide their cp 1; give it another, or use the policy disag"),
    ],
)
def test_rigid_refuses_fixed_ranks_that_one_layout_cannot_have(policy, ranks, message):
    assert message in run_policy(problem(ranks=ranks), policy).reason


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (("mind", 2, 1), "ranks are given for mind, which the model lacks; it has vision, backbone, generator"),
        (("generator", 2, 1), "given for generator: cp 2, but generator has no sequence to divide"),
        (("vision", 1, 2), "given for vision: ep 2, but no layer of vision has experts"),
        (("backbone", 1, 3), "given for backbone: ep 3 does not divide the 4 experts of backbone"),
        (("backbone", 0, 1), "the given cp is 0; it must be at least 1"),
    ],
)
def test_impossible_fixed_ranks_are_refused_by_name(ranks, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        problem(experts=4, ranks=(ranks,))
    with pytest.raises(PlanError, match="ep 4 does not divide the 6 rows of the global batch"):
        problem(rows=6, experts=4, ranks=(("backbone", 1, 4),))


def test_ratio_divides_devices_by_flops():
    case = problem(devices=12)
    shares = flops_shares(case)
    assert sum(shares.values()) == pytest.approx(1) and shares["backbone"] > shares["generator"] > 0
    plan = run_policy(case, "ratio").plan
    for name, share in shares.items():
        assert len(plan.unit_of(name).devices) <= max(1, int(share * 12))


def test_tensor_groups_lie_on_one_node():
    small, large = (
        make_unit(("a",), dp=3, tp=1, layers=(1,), recompute="none"),
        make_unit(("b",), dp=1, tp=4, layers=(1, 1), recompute="none"),
    )
    plan = place_units([small, large], 1)
    assert plan.unit_of("b").devices == range(8) and plan.unit_of("a").devices == range(8, 11)
    plans = disaggregated.plans(problem(devices=14))
    for made in (unit for plan in plans for unit in plan.units):
        groups = np.array(made.devices).reshape(-1, made.parallelism.tp) // 4
        assert (groups == groups[:, :1]).all()


@pytest.mark.parametrize(
    ("policy", "counted", "said"),
    [("rigid", "ring", "sequence_parallel"), ("disaggregated", "ring", "ring"), ("rigid", "all_reduce", "all_reduce")],
)
def test_units_have_the_collectives_that_their_costs_assume(policy, counted, said):
    case = problem(devices=14)
    case = dataclasses.replace(case, costs=dataclasses.replace(case.costs, collectives=counted))
    units = run_policy(case, policy).plan.units
    assert policy != "rigid" or any(made.parallelism.tp > 1 for made in units)
    assert all(made.parallelism.collectives == (said if made.parallelism.tp > 1 else "all_reduce") for made in units)


@pytest.mark.parametrize("policy", ["rigid", "rigid_first_stage"])
def test_tensor_ranks_that_do_not_divide_the_positions_use_all_reduce(policy):
    case = problem(devices=14)
    (encoder, *_) = [module.name for module in case.graph.modules if not module.inputs and not module.is_backbone]
    case = dataclasses.replace(case, row_positions={encoder: 7, case.graph.backbone.name: 64})
    for made in run_policy(case, policy).plan.units:
        alone = made.modules == (case.graph.backbone.name,)
        assert made.parallelism.collectives == (
            "sequence_parallel" if alone and made.parallelism.tp > 1 else made.parallelism.collectives
        )
        if encoder in made.modules:
            assert made.parallelism.collectives == "all_reduce"
    uneven = dataclasses.replace(case, row_positions={case.graph.backbone.name: 7})
    assert {
        made.parallelism.collectives for made in run_policy(uneven, policy).plan.units if made.modules[-1] == "backbone"
    } == {"all_reduce"}


@pytest.mark.parametrize("memory", [6e6, 9e6])
def test_a_model_that_does_not_fit_names_the_lacking_bytes_and_a_sufficient_cluster(memory):
    small = problem(devices=3, rows=4, memory=memory)
    least = min_devices(small)
    total = sum(least.values())
    assert total > 3
    with pytest.raises(
        PlanError, match=rf"smallest cluster of toy that would do for units of their own has {total} devices"
    ) as caught:
        disaggregated.plans(small)
    assert re.search(r"unit backbone: .* it needs [\d.]+ MB on each, [\d.]+ MB more", str(caught.value))
    assert disaggregated.plans(dataclasses.replace(small, devices=total))
    with pytest.raises(PlanError):
        disaggregated.plans(dataclasses.replace(small, devices=total - 1))


def test_a_model_that_no_number_of_devices_holds():
    with pytest.raises(PlanError, match=r"unit backbone needs .* no number of these devices will do"):
        disaggregated.plans(problem(memory=1e5))


def test_an_unknown_policy_names_the_known_ones():
    with pytest.raises(UserError, match="'local_search' changes the plans of other policies; use auto"):
        run_policy(problem(), LOCAL_SEARCH)
    with pytest.raises(UserError, match="'best' is not one of auto, rigid, .*disaggregated"):
        run_policy(problem(), "best")


def test_no_policy_has_a_plan():
    case = problem(memory=1e5)
    with pytest.raises(
        PlanError, match="disaggregated: unit backbone.*No other policy has a plan .rigid, rigid_first_stage, "
    ):
        best_result(case, [run_policy(case, policy) for policy in PLANNING_POLICIES])


def test_more_chunks_are_tried_while_they_shorten_the_step():
    model = ModelConfig((VISION,), dataclasses.replace(BACKBONE, depth=12), ())
    case = problem(model, devices=5, rows=8, memory=1.6e7, chunks=tuple(range(1, 13)))
    case = dataclasses.replace(case, tensor_sizes=(1,))
    steps = {}
    for plan in disaggregated.plans(case):
        chunks = plan.unit_of("backbone").parallelism.chunks
        steps[chunks] = min(case.simulate(plan).step, steps.get(chunks, np.inf))
    assert set(steps) == {1, 2, 3, 4}
    assert steps[1] > steps[2] > steps[3] < steps[4]
