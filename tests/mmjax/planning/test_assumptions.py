"""The table of a choice under changed assumptions, and its JSON."""

import io

import pytest
from rich.console import Console

from configs.common.errors import UserError
from mmjax.planning.assumptions import UnderAssumptions, assumptions_document, print_assumptions, under_assumptions
from sharding.planners.policies.policy_comparison import compare_policies
from sharding.planners.sensitivity import Sensitivity
from tests.sharding.planners.problems import problem

COMPARED = UnderAssumptions(
    choice="fsdp",
    other="disaggregated",
    planned=Sensitivity("as planned", 1.0, 1.1),
    changed=(
        Sensitivity("no dispatch", 1.0, 1.1),
        Sensitivity("no jitter", 0.9, 1.0),
        Sensitivity("half the bandwidth between nodes", 1.5, 1.2),
    ),
)


def printed(compared):
    console = Console(width=100, file=io.StringIO())
    print_assumptions(compared, console)
    return console.file.getvalue()


def test_the_largest_change_comes_first_and_what_turns_the_choice_is_said():
    shown = printed(COMPARED)
    assert "as planned, disaggregated takes 1.100 times as long as fsdp" in " ".join(shown.split())
    table, said = shown.split("The choice turns with")
    assert table.index("half the bandwidth between nodes") < table.index("no jitter") and "no dispatch" not in table
    assert said == ": half the bandwidth between nodes. Neither step changes with: no dispatch.\n"


def test_a_choice_that_no_change_turns():
    assert "None of these changes turns the choice." in printed(COMPARED._replace(changed=COMPARED.changed[:2]))


def test_json_has_every_change_in_seconds():
    changes = assumptions_document(COMPARED)["changes"]
    assert changes[2] == {
        "assumption": "half the bandwidth between nodes", "choice": 1.5, "other": 1.2, "turns_the_choice": True,
    }  # fmt: skip
    assert [change["turns_the_choice"] for change in changes] == [False, False, True]


def test_the_best_other_plan_is_compared_and_one_plan_alone_is_refused():
    small = problem(devices=12)
    every = compare_policies(small)
    compared = under_assumptions(every)
    others = [result.timeline.step for result in every.results if result.simulated and result.plan != every.plan]
    assert compared.planned.choice == every.timeline.step and compared.planned.other in others
    with pytest.raises(UserError, match="disaggregated alone has a plan here"):
        under_assumptions(compare_policies(small, "disaggregated"))
