"""Why a choice leaves devices idle: each reason, on a problem that has it."""

import pytest

from mmjax.planning.choice import explain_choice
from mmjax.planning.idle_devices import why_devices_idle
from mmjax.planning.report import plan_document
from sharding.planners.policies.auto import BUILT_IN_POLICIES, run_policy
from sharding.planners.policies.policy_comparison import compare_policies, comparison_of
from tests.sharding.planners.problems import problem


def compared(devices, rows):
    return compare_policies(problem(devices=devices, rows=rows))


def test_a_choice_on_all_devices_leaves_none_idle():
    comparison = compared(12, 24)
    assert comparison.plan.device_count == 12 and why_devices_idle(comparison) == ""
    assert plan_document(comparison)["idle_devices"] is None and "idle:" not in explain_choice(comparison)


def test_a_plan_on_more_devices_that_saves_no_time_is_named():
    small = problem(devices=12, rows=8)
    comparison = comparison_of(small, [run_policy(small, policy) for policy in BUILT_IN_POLICIES])
    (larger,) = (result for result in comparison.results if result.policy == "colocated")
    choice, step = comparison.choice, larger.timeline.step
    assert step <= 1.02 * choice.timeline.step and 12 * step > 8 * choice.timeline.step
    said = why_devices_idle(comparison)
    assert said == (
        f"4 of the 12 devices are idle: colocated takes {step * 1e3:.1f} ms on 12, within 2% of the choice, and more "
        "device-seconds."
    )
    assert said in explain_choice(comparison) and plan_document(comparison)["idle_devices"] == said


def test_rows_that_would_use_more_devices_are_named_and_do():
    comparison = compared(24, 20)
    assert comparison.plan.device_count == 20
    assert why_devices_idle(comparison) == (
        "4 of the 24 devices are idle: with tp 2, pp 1 and dp 11 of backbone, 22 could be used for 22 rows, but not "
        "for 20."
    )
    assert compared(24, 22).plan.device_count == 22


@pytest.mark.parametrize(
    ("devices", "rows", "reason"),
    [
        (11, 20, "1 of the 11 devices is idle: no further replica of backbone fits (2 devices: tp 2, pp 1)."),
        (
            10,
            8,
            "2 of the 10 devices are idle: with tp 2, pp 1, more replicas of backbone would divide no number of rows "
            "within 15% of 8.",
        ),
    ],
)
def test_sizes_of_modules_and_rows_far_from_all_that_would_do_are_said(devices, rows, reason):
    assert why_devices_idle(compared(devices, rows)) == reason


def test_a_layout_that_the_rows_allow_on_more_devices_was_not_worth_them():
    comparison = compare_policies(problem(devices=24, rows=24), "ratio")
    assert comparison.plan.device_count == 17
    assert why_devices_idle(comparison) == (
        "7 of the 24 devices are idle: with tp 2, pp 2 and dp 4 of backbone, 23 could be used, but no plan on more "
        "devices that was compared with it takes a step more than 2% shorter, and up to there the fewest "
        "device-seconds count."
    )
