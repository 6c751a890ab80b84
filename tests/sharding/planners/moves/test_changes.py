"""Changes of plans: every one gives a plan that can be trained or is refused, and changes what it says."""

import dataclasses
import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.clusters import Link
from sharding.planners.capacities import capacities_of
from sharding.planners.layouts.hop_seconds import hops_between
from sharding.planners.moves.change import Change, UnitChange, all_policies, changed_plan
from sharding.planners.moves.local_search import CHANGE_KINDS
from sharding.planners.moves.recomputation import recompute_changes
from sharding.planners.moves.sizes import size_changes
from sharding.planners.policies.auto import is_trainable, run_policy
from sharding.plans.plan_error import PlanError
from tests.sharding.planners.problems import build_problem, problem, recipes

PROBLEM = problem(devices=12, spread=0.6)


@functools.cache
def plans():
    """By policy, the plan that the changes start from; all plans of this file take seconds."""
    return {name: run_policy(PROBLEM, name).plan for name in ("disaggregated", "fsdp", "colocated")}


def accepted(case, plan, kind):
    """The changes of a kind that give a plan, with it."""
    plans = []
    for change in kind(case, plan):
        try:
            plans.append((change, changed_plan(case, plan, change)))
        except PlanError:
            continue
    return plans


@pytest.mark.parametrize("kind", CHANGE_KINDS)
def test_every_kind_changes_some_plan(kind):
    changed = [plan for start in plans().values() for _, plan in accepted(PROBLEM, start, kind)]
    assert changed and all(plan not in plans().values() for plan in changed)


@settings(max_examples=15)
@given(recipes(), st.sampled_from(("disaggregated", "fsdp", "colocated")))
def test_changed_plans_can_be_trained_on_the_devices_with_all_layers(recipe, policy):
    case = build_problem(recipe)
    result = run_policy(case, policy)
    if not result.simulated or not is_trainable(case, result.plan):
        return
    for kind in CHANGE_KINDS:
        for change, plan in accepted(case, result.plan, kind):
            assert is_trainable(case, plan) and max(max(unit.devices) for unit in plan.units) < case.devices, change
            assert plan.shares_devices == result.plan.shares_devices
            for unit, before in zip(plan.units, result.plan.units, strict=True):
                assert sum(unit.layers) == sum(before.layers) and unit.modules == before.modules
                for module in unit.modules:
                    if module in case.fixed_ranks:
                        ranks = case.fixed_ranks_of(module)
                        assert (unit.parallelism.cp, unit.parallelism.ep) == (ranks.cp, ranks.ep), change


def test_a_unit_of_another_size_gets_devices_capacities_and_collectives_of_that_size():
    plan = plans()["disaggregated"]
    vision = plan.unit_of("vision")
    dp = vision.parallelism.dp + 1
    change = Change("", {"vision": UnitChange(phase_rows=dp, parallelism={"dp": dp})})
    changed = changed_plan(dataclasses.replace(PROBLEM, devices=99), plan, change)
    unit = changed.unit_of("vision")
    assert unit.parallelism.dp == unit.phase_rows == dp and len(unit.devices) == dp * unit.parallelism.tp * unit.pp
    assert unit.capacities == capacities_of(PROBLEM, unit, plan.microbatches)
    assert len({device for other in changed.units for device in other.devices}) == changed.device_count
    alone = changed_plan(PROBLEM, plan, Change("", {"vision": UnitChange(parallelism={"dp": 1}, phase_rows=1)}))
    assert alone.unit_of("backbone").schedule_hints == plan.unit_of("backbone").schedule_hints


def test_all_replicas_of_a_fully_sharded_unit_stay_so_and_whole_weights_stay_whole():
    case = dataclasses.replace(PROBLEM, devices=99)
    plan = plans()["disaggregated"]
    one = changed_plan(case, plan, Change("", {"vision": UnitChange(phase_rows=1, parallelism={"dp": 1, "fsdp": 1})}))
    two = changed_plan(case, one, Change("", {"vision": UnitChange(phase_rows=2, parallelism={"dp": 2})}))
    assert two.unit_of("vision").parallelism.fsdp == 1
    sharded = changed_plan(case, two, Change("", {"vision": UnitChange(parallelism={"fsdp": 2})}))
    three = changed_plan(case, sharded, Change("", {"vision": UnitChange(phase_rows=3, parallelism={"dp": 3})}))
    assert three.unit_of("vision").parallelism.fsdp == 3


def test_microbatches_stay_on_their_pipeline_replicas():
    replicas = (1, 0, 2, 1)
    plan = plans()["colocated"]
    assert (plan.microbatches, plan.unit_of("vision").parallelism.pipeline_replicas) == (4, 3)
    units = tuple(
        unit.with_hints(replica_of_microbatch=replicas) if unit.name == "vision" else unit for unit in plan.units
    )
    plan = dataclasses.replace(plan, units=units, made_for=None)
    assert changed_plan(PROBLEM, plan, Change("")) == plan
    more = Change("", {"backbone": UnitChange(extra_microbatches=1)})
    assert changed_plan(PROBLEM, plan, more).unit_of("vision").schedule_hints.replica_of_microbatch == replicas


def test_layers_keep_their_policies_where_stages_change():
    plan = plans()["disaggregated"]
    policies = ("full", "none", "selective", "none")
    mixed = changed_plan(PROBLEM, plan, Change("", {"backbone": UnitChange(policies=policies)}))
    assert all_policies(mixed.unit_of("backbone")) == policies
    parallelism = mixed.unit_of("backbone").parallelism
    layers = (1, 3) if parallelism.dp * parallelism.tp > 1 else (4,)
    moved = changed_plan(
        dataclasses.replace(PROBLEM, devices=99), mixed, Change("", {"backbone": UnitChange(layers=layers)})
    )
    assert all_policies(moved.unit_of("backbone")) == policies and moved.unit_of("backbone").layers == layers
    assert moved.unit_of("backbone").recompute == ("full", "1 none, 1 selective, 1 none")


def test_shared_devices_stay_and_other_numbers_of_them_are_refused():
    plan = plans()["fsdp"]
    with pytest.raises(PlanError, match=f"unit vision shares its {plan.device_count} devices"):
        changed_plan(PROBLEM, plan, Change("", {"vision": UnitChange(parallelism={"dp": 2}, phase_rows=2)}))
    filled = changed_plan(PROBLEM, plan, Change("", schedule="colocated"))
    assert [unit.devices for unit in filled.units] == [unit.devices for unit in plan.units]
    assert all(unit.schedule_hints.forward_seconds for unit in filled.units)


def test_more_devices_than_there_are_are_refused():
    backbone = plans()["disaggregated"].unit_of("backbone")
    twice = UnitChange(parallelism={"tp": 4 * backbone.parallelism.tp})
    with pytest.raises(PlanError):
        changed_plan(PROBLEM, plans()["disaggregated"], Change("", {"backbone": twice}))


def test_layers_are_offloaded_only_where_devices_have_a_link_to_host_memory():
    def offloads(case):
        return any("offload" in change.words for change in recompute_changes(case, plans()["disaggregated"]))

    linked = dataclasses.replace(PROBLEM.cluster, host_link=Link(1e9, 1e-6), host_memory=1e9)
    assert "offload" not in PROBLEM.recompute_choices and not offloads(PROBLEM)
    assert offloads(dataclasses.replace(PROBLEM, cluster=linked))


def test_a_change_of_recomputation_alone_is_known_as_such():
    policies = ("full",) * 4
    only, both = UnitChange(policies=policies), UnitChange(policies=policies, layers=(2, 2))
    assert Change("", {"backbone": only, "vision": only}).recomputes_only
    assert not Change("", {"backbone": only}, microbatches=2).recomputes_only
    assert not Change("", {"backbone": only}, schedule="zb-h1").recomputes_only
    assert not any(Change("", {"backbone": only, "vision": other}).recomputes_only for other in (both, UnitChange()))


@settings(max_examples=10)
@given(recipes(), st.sampled_from(("disaggregated", "fsdp", "colocated", "balanced")))
def test_steps_of_many_changed_plans_are_those_of_each_alone(recipe, policy):
    """What a problem keeps of the plans that it simulated before changes no figure."""
    case = build_problem(recipe)
    result = run_policy(case, policy)
    if not result.simulated:
        return
    for kind in CHANGE_KINDS:
        for _, plan in accepted(case, result.plan, kind)[::5]:
            timeline, alone = case.simulate(plan), dataclasses.replace(case).simulate(plan)
            for span, other in zip(timeline.spans, alone.spans, strict=True):
                assert span.op == other.op and (span.start == other.start).all() and (span.end == other.end).all()
            assert case.memory_fraction(timeline) == dataclasses.replace(case).memory_fraction(alone)
            assert case.least_step_seconds(plan) == dataclasses.replace(case).least_step_seconds(plan)
            assert (timeline.mfu, timeline.mfu_whole_squares) == (alone.mfu, alone.mfu_whole_squares)
            assert timeline.hfu == alone.hfu


def test_tensor_ranks_are_those_that_a_planner_may_choose():
    def sizes(case):
        changes = [change for start in plans().values() for change in size_changes(case, start)]
        fields = [unit.parallelism for change in changes for unit in change.units.values()]
        return {parallelism["tp"] for parallelism in fields if parallelism.get("tp", 1) > 1}

    assert sizes(PROBLEM) and max(sizes(PROBLEM)) <= PROBLEM.cluster.devices_per_node
    started = {unit.parallelism.tp for plan in plans().values() for unit in plan.units}
    assert sizes(dataclasses.replace(PROBLEM, tensor_sizes=(1,))) <= started


def test_hops_of_the_same_units_on_other_devices_are_other_hops():
    """Estimates ask for hops as if the devices of units followed each other; plans have them elsewhere."""
    case = problem(devices=4)  # a node
    plan = run_policy(case, "fsdp").plan
    assert plan.device_count == 4
    vision, backbone = (plan.unit_of(name) for name in ("vision", "backbone"))
    fresh = dataclasses.replace(case)
    apart = hops_between(vision, backbone, plan.microbatches, fresh.sampled_costs)
    edge = (("vision", 0), ("backbone", 0))
    shared = fresh.step_costs(plan).hops[edge]
    assert (shared == dataclasses.replace(case).step_costs(plan).hops[edge]).all()
    assert (apart.forward > shared.max(axis=1)).all()  # between nodes
