"""What an edit makes necessary is repaired: devices, groups, microbatches, capacities, hints, schedule."""

import contextlib
import random

from benchmarks.planner.edits.drafts import PlanDraft, UnitDraft, draft_of
from benchmarks.planner.edits.repairs import build_plan, largest_divisor, repair
from benchmarks.planner.edits.sizes import NoOtherValueError
from benchmarks.planner.edits.stages import divide, edit_pp
from sharding.planners.capacities import capacities_of
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import resolve_plan
from tests.benchmarks.planner.edits.plans import planned, small_problem
from tests.sharding.planners.problems import problem
from tests.unit_plans import module_unit


def repaired(draft: PlanDraft, edited: UnitDraft | None, field: str) -> Plan:
    repair(small_problem(), draft, edited, field)
    return build_plan(small_problem(), draft)


def test_units_of_their_own_stay_on_devices_of_their_own():
    draft = draft_of(planned("disaggregated").plan)
    unit = draft.units[0]
    unit["dp"] *= 2
    plan = repaired(draft, unit, "dp")
    assert plan.device_count == sum(len(unit.devices) for unit in plan.units)
    assert sorted(device for unit in plan.units for device in unit.devices) == list(range(plan.device_count))


def test_units_that_share_devices_still_do():
    draft = draft_of(planned("fsdp").plan)
    unit = draft.units[0]
    unit["dp"] //= 2
    plan = repaired(draft, unit, "dp")
    assert set(plan.units[0].devices) < set(plan.units[1].devices)
    assert plan.units[0].parallelism.fsdp == plan.units[0].parallelism.dp
    assert plan.units[0].phase_rows == plan.units[0].parallelism.dp
    assert plan.units[0].capacities == capacities_of(small_problem(), plan.units[0], plan.microbatches)


def test_more_replicas_than_rows_of_a_microbatch_have_fewer_microbatches():
    draft = draft_of(planned("disaggregated").plan)
    unit = next(unit for unit in draft.units if unit.name == "backbone")
    unit["dp"] *= 2
    plan = repaired(draft, unit, "dp")
    assert plan.microbatches < planned("disaggregated").plan.microbatches
    assert small_problem().rows % (plan.microbatches * plan.unit_of("backbone").parallelism.dp) == 0


def test_fewer_microbatches_bound_what_is_in_flight():
    draft = draft_of(planned("disaggregated").plan)
    for unit in draft.units:
        unit.extra_microbatches = draft.microbatches - 1
    draft.microbatches //= 2
    plan = repaired(draft, None, "microbatches")
    assert {unit.schedule_hints.extra_microbatches for unit in plan.units} == {plan.microbatches - 1}


def test_chunks_are_interleaved_by_the_seconds_of_stages():
    draft = draft_of(planned("disaggregated").plan)
    unit = next(unit for unit in draft.units if unit.name == "backbone")
    unit.layers, unit["chunks"] = divide([1.0] * 4, 2 * unit.pp), 2
    plan = repaired(draft, unit, "chunks")
    assert plan.schedule == "interleaved"
    assert all(unit.schedule_hints.forward_seconds for unit in plan.units)


def test_the_schedule_of_an_edit_stays():
    draft = draft_of(planned("disaggregated").plan)
    draft.schedule = "colocated"
    plan = repaired(draft, None, "schedule")
    assert plan.schedule == "colocated"
    assert all(unit.schedule_hints.forward_communication for unit in plan.units)


def test_stages_are_divided_by_seconds():
    assert divide([1.0] * 8, 3) in ([3, 3, 2], [3, 2, 3], [2, 3, 3])
    assert divide([4.0, 1.0, 1.0, 1.0, 1.0], 2) == [1, 4]
    assert divide([1.0, 1.0, 1.0, 9.0], 2) == [3, 1]
    for stages in range(1, 9):
        layers = divide([random.Random(stages).random() + 0.1] * 8, stages)
        assert len(layers) == stages and sum(layers) == 8 and min(layers) >= 1


def test_another_number_of_stages_has_all_layers_of_the_unit():
    case = problem(devices=16, rows=8)
    plan = Plan(
        (
            module_unit("vision", (0, 1), layers=(1, 2)),
            module_unit("backbone", (2,), layers=(4,)),
            module_unit("generator", (3,)),
        ),
        microbatches=4,
    )
    ranks = set()
    for seed in range(12):
        draft = draft_of(plan)
        with contextlib.suppress(NoOtherValueError):  # eight stages of three layers
            edit_pp(case, draft, draft.units[0], random.Random(seed))
        repair(case, draft, draft.units[0], "pp")
        edited = build_plan(case, draft)
        assert sum(edited.units[0].layers) == 3
        resolve_plan(edited, case.graph, case.devices)
        ranks.add(edited.units[0].pp)
    assert ranks == {1, 2, 3}


def test_the_largest_divisor_may_have_to_be_a_multiple():
    assert largest_divisor(12, 5) == 4
    assert largest_divisor(12, 5, 3) == 3
    assert largest_divisor(12, 5, 5) == 0
