"""No simulated step is shorter than its bound, and a bound is met where nothing waits."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import ModelConfig
from sharding.costs.step_costs import StageCosts, StageWork, StepWork
from sharding.planners.policies.auto import PLANNING_POLICIES
from sharding.planners.step_bound import least_on_one_device, least_step_seconds
from sharding.plans.plan_error import PlanError
from tests.sharding.planners.problems import BACKBONE, build_problem, problem, recipes
from tests.sharding.steps import SimulatedStep, build_step, step_recipes


def all_plans(case):
    """The candidates of every policy that has some."""
    plans = []
    for policy in PLANNING_POLICIES.values():
        try:
            plans += policy(case)
        except PlanError:
            continue
    return plans


@given(recipes())
@settings(max_examples=15, deadline=None)
def test_no_step_is_shorter(recipe):
    case = build_problem(recipe)
    for plan in all_plans(case):
        bound = case.least_step_seconds(plan)
        orders = [plan] if plan.schedule == "interleaved" else [plan, dataclasses.replace(plan, schedule="gpipe")]
        for order in orders:
            for rendezvous in (False, True):
                assert case.simulate(order, rendezvous).step >= bound * (1 - 1e-9)


def step_work(step: SimulatedStep) -> StepWork:
    """What bounds a step, from all its costs."""
    graph, count = step.op_graph.stage_graph, step.op_graph.microbatches

    def stage_work(stage, costs: StageCosts) -> StageWork:
        numbers = [
            list(graph.microbatches_of(stage[0], pipeline_replica, count))
            for pipeline_replica in range(graph.pipeline_replica_count(stage[0]))
        ]
        communication = costs.forward_communication + costs.backward_communication
        forward, backward, waits = (
            np.concatenate([seconds[microbatches].sum(axis=0) for microbatches in numbers])
            for seconds in (costs.forward, costs.backward, communication)
        )
        return StageWork(
            forward,
            backward,
            forward + backward - waits,
            (costs.forward + costs.backward).max(axis=1),
            float(costs.forward.min()),
            float(costs.backward.min()),
            costs.gather,
            costs.reduce,
            costs.update,
        )

    hops, back = (
        {edge: float(seconds.min()) for edge, seconds in hops.items()}
        for hops in (step.costs.hops, step.costs.gradient_hops)
    )
    stages = {stage: stage_work(stage, costs) for stage, costs in step.costs.stages.items()}
    return StepWork(stages, hops, back | dict.fromkeys(hops.keys() - back.keys(), 0.0), step.costs.global_norm)


@given(step_recipes())
@settings(max_examples=60, deadline=None)
def test_no_step_of_any_devices_and_copies_is_shorter(recipe):
    step = build_step(recipe)
    bound = least_step_seconds(step.op_graph, step_work(step))
    assert bound > 0 or step.run().step == 0
    for rendezvous in (False, True):
        assert step.run(rendezvous).step >= bound * (1 - 1e-9)


def test_one_stage_takes_its_bound():
    case = problem(ModelConfig((), BACKBONE, ()), devices=1)
    plans = [plan for plan in all_plans(case) if plan.device_count == 1 and len(plan.units[0].layers) == 1]
    assert plans
    for plan in plans:
        assert case.least_step_seconds(plan) == pytest.approx(case.simulate(plan).step, rel=1e-9)


REPLICA_SECONDS = st.sampled_from([1, 2, 4]).flatmap(lambda n: st.lists(st.integers(0, 9), min_size=n, max_size=n))


@given(st.lists(REPLICA_SECONDS, min_size=1), st.randoms(use_true_random=False))
def test_some_device_takes_the_work_of_all_ranks_on_it(seconds, random):
    work = [np.array(replica_seconds, float) for replica_seconds in seconds]
    on_devices = np.zeros(4)
    for replica_seconds in work:
        order = random.sample(range(4), 4)
        on_devices[order] += np.repeat(replica_seconds, 4 // len(replica_seconds))
    assert on_devices.max() >= least_on_one_device(work) - 1e-9
    assert least_on_one_device(work[:1]) == work[0].max()
