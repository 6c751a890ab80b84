"""The choice and the best other plan under changed assumptions, as a table and as JSON; `mmjax.plan` prints it."""

from typing import Any, NamedTuple

from rich.console import Console

from configs.common.errors import UserError
from configs.common.tables import print_table, report_table
from mmjax.planning.choice import best_other
from sharding.html.numbers import seconds
from sharding.planners.policies.policy_comparison import PolicyComparison
from sharding.planners.sensitivity import Sensitivity, sensitivities


class UnderAssumptions(NamedTuple):
    """The plans of two policies under changed assumptions.

    Attributes:
        choice: The policy of the chosen plan.
        other: The policy of the best other plan.
        planned: Both steps as they were compared.
        changed: Both steps under every change.
    """

    choice: str
    other: str
    planned: Sensitivity
    changed: tuple[Sensitivity, ...]


def under_assumptions(comparison: PolicyComparison) -> UnderAssumptions:
    """Simulates the choice and the best other plan under every change; raises UserError without another plan."""
    choice, other = comparison.choice, best_other(comparison)
    if other is None:
        raise UserError(f"--assumptions compares two plans, but {choice.policy} alone has a plan here; leave it out")
    planned = Sensitivity("as planned", choice.timeline.step, other.timeline.step)
    changed = sensitivities(comparison.problem, choice.plan, other.plan)
    return UnderAssumptions(choice.policy, other.policy, planned, changed)


def assumptions_document(compared: UnderAssumptions) -> dict[str, Any]:
    """Returns the steps as JSON, in seconds."""
    return {
        "choice": compared.choice,
        "other": compared.other,
        "changes": [{**changed._asdict(), "turns_the_choice": changed.turns} for changed in compared.changed],
    }


def print_assumptions(compared: UnderAssumptions, console: Console) -> None:
    """Prints the steps of both plans under every change, the largest change of their ratio first."""
    planned = compared.planned
    table = report_table(
        f"Simulated steps with one assumption changed; as planned, {compared.other} takes {planned.ratio:.3f} times "
        f"as long as {compared.choice}",
        "change",
        compared.choice,
        compared.other,
        "times as long",
        texts=("change",),
    )
    without_effect = [changed for changed in compared.changed if changed.has_steps_of(planned)]
    with_effect = [changed for changed in compared.changed if changed not in without_effect]
    for changed in sorted(with_effect, key=lambda changed: -abs(changed.ratio - planned.ratio)):
        cells = (changed.assumption, seconds(changed.choice), seconds(changed.other), f"{changed.ratio:.3f}")
        table.add_row(*cells, style="bold" if changed.turns else None)
    print_table(table, console)
    turning = [changed.assumption for changed in compared.changed if changed.turns]
    said = f"The choice turns with: {', '.join(turning)}." if turning else "None of these changes turns the choice."
    if without_effect:
        said += f" Neither step changes with: {', '.join(changed.assumption for changed in without_effect)}."
    console.print(said, soft_wrap=True)
