"""Plans of fully sharded modules on the same devices: their groups and rows, and how their layers recompute."""

import dataclasses
import itertools
import re

import pytest

from configs.architectures import ModelConfig
from configs.clusters import Link
from sharding.planners.policies import fully_sharded
from sharding.planners.policies.auto import run_policy
from sharding.planners.policies.best_plan import best_simulated
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.plans.text.recompute_text import policy_runs
from tests.sharding.planners.problems import AUDIO, BACKBONE, GENERATOR, MODEL, VISION, problem

TWO_ENCODERS = ModelConfig((VISION, AUDIO), BACKBONE, (GENERATOR,))


def best(case):
    return best_simulated(case, fully_sharded.plans(case))


@pytest.mark.parametrize("devices", [1, 2, 8, 14])
def test_all_modules_are_on_the_same_devices_and_their_groups_too(devices):
    case = problem(TWO_ENCODERS, devices=devices, rows=8)
    for plan in fully_sharded.plans(case):
        resolve_plan(plan, case.graph, case.devices, case.rows)
        backbone = plan.unit_of("backbone")
        assert backbone.phase_rows == 0 and backbone.parallelism.dp == min(
            8, 2 ** (devices // backbone.parallelism.tp).bit_length() // 2
        )
        for unit in plan.units:
            assert unit.devices == backbone.devices and unit.pp == 1
            assert unit.parallelism.fsdp * unit.parallelism.tp == backbone.parallelism.fsdp * backbone.parallelism.tp
            assert unit is backbone or (
                unit.phase_rows == unit.parallelism.dp and unit.capacities and unit.parallelism.tp == 1
            )


def test_groups_are_whole_nodes():
    case = problem(devices=32, rows=32)
    sizes = {plan.unit_of("vision").parallelism.fsdp for plan in fully_sharded.plans(case)}
    assert sizes <= {4, 16, 32} and len(sizes) > 1


def test_a_larger_group_takes_less_memory():
    memory = {}
    for group in (4, 16):
        case = problem(devices=16, rows=16)
        plans = [plan for plan in fully_sharded.plans(case) if plan.unit_of("backbone").devices == range(16)]
        memory[group] = min(
            case.memory_fraction(case.simulate(dataclasses.replace(plan, units=_grouped(plan, group))))
            for plan in plans
        )
    assert memory[16] < memory[4]


def _grouped(plan, devices):
    return tuple(unit.with_parallelism(fsdp=devices // unit.parallelism.tp) for unit in plan.units)


def test_as_few_layers_recompute_as_the_memory_needs():
    roomy = problem(devices=4, rows=4)
    roomy = dataclasses.replace(roomy, tensor_sizes=(1,))
    free = best(roomy)
    assert {policy for unit in free.plan.units for policy in unit.recompute} == {"none"}
    needed = roomy.memory_fraction(free.timeline) * roomy.cluster.usable_memory
    steps = {}
    for share in (0.95, 0.8):
        tight = dataclasses.replace(roomy, cluster=dataclasses.replace(roomy.cluster, memory=share * needed / 0.8))
        result = best(tight)
        assert tight.memory_fraction(result.timeline) <= 1
        policies = result.plan.unit_of("backbone").layer_recompute(0)
        assert len({policy for policy, _ in policy_runs(policies)}) == 2 or len(set(policies)) == 1
        steps[share] = result.timeline.step
    assert free.timeline.step < steps[0.95] <= steps[0.8]


def test_no_other_policies_of_whole_modules_take_fewer_seconds():
    """Memory for half of what is saved, on hosts that hold what does not fit, and without."""
    roomy = problem(devices=4, rows=4)
    free = best(roomy).plan
    full = dataclasses.replace(free, units=tuple(dataclasses.replace(unit, recompute=("full",)) for unit in free.units))
    shares = [roomy.memory_fraction(roomy.simulate(plan)) for plan in (free, full)]
    needed = sum(shares) / 2 * roomy.cluster.usable_memory
    steps = []
    for host_link in (None, Link(1e9, 1e-6)):
        cluster = dataclasses.replace(roomy.cluster, memory=needed / 0.8, host_link=host_link, host_memory=1e9)
        tight = dataclasses.replace(roomy, cluster=cluster, costs=dataclasses.replace(roomy.costs, cluster=cluster))
        result = best(tight)
        assert tight.memory_fraction(result.timeline) <= 1
        steps.append(result.timeline.step)
        others = 0
        for plan in fully_sharded.plans(tight):
            for policies in itertools.product(tight.searched_recompute, repeat=len(plan.units)):
                units = zip(plan.units, policies, strict=True)
                other = dataclasses.replace(
                    plan, units=tuple(dataclasses.replace(unit, recompute=(policy,)) for unit, policy in units)
                )
                timeline = tight.simulate(other)
                if tight.memory_fraction(timeline) <= 1:
                    others += 1
                    assert timeline.step >= result.timeline.step * (1 - 2e-3), policies
        assert others
    assert steps[1] < steps[0]


def test_expert_ranks_lie_inside_groups():
    case = problem(devices=8, rows=8, experts=4, ranks=(("backbone", 1, 4),))
    for plan in fully_sharded.plans(case):
        backbone = plan.unit_of("backbone")
        assert backbone.parallelism.ep == 4 and backbone.parallelism.fsdp % 4 == 0
        resolve_plan(plan, case.graph, case.devices, case.rows)


def test_ranks_that_the_rows_do_not_allow_are_refused():
    case = problem(devices=6, rows=4, experts=4, ranks=(("backbone", 2, 4),))
    with pytest.raises(PlanError, match=r"on 6 devices no number of replicas divides the 4 rows .* backbone cp 2 ep 4"):
        fully_sharded.plans(case)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (3e6, r"unit vision: with the rows that were drawn, its stage 0 needs .* on the best layout for 8 devices"),
        (
            1.9e6,
            r"unit generator: .* a device gathers 1\.917 MB for .* \(unet\), 0\.017 MB more than the 1\.900 MB of toy",
        ),
    ],
    ids=["of a stage", "of a layer that is gathered"],
)
def test_too_little_memory_is_named(memory, message):
    assert re.match(message, run_policy(problem(MODEL, memory=memory), "fsdp").reason)
