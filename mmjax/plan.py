"""`python -m mmjax.plan`: how a configured model should lie on a cluster, by every policy, without that cluster.

    python -m mmjax.plan --gin_file=models/mllm_72b.gin --cluster=a800 --devices=1296 --output=plan.json

A model of configs/models is planned on described data of configs/data; a training configuration on its own source.
"""

import json
import pathlib
from typing import TYPE_CHECKING

from absl import flags

from mmjax import cli, planning_flags

if TYPE_CHECKING:
    from sharding.planners.given import Given

_POLICY = flags.DEFINE_string("policy", "auto", "A policy's name; auto compares all and takes the best.")
_SEQUENCE_RANKS = flags.DEFINE_list("sequence_ranks", [], "Of each instance, by module, such as backbone:4 (cp).")
_EXPERT_RANKS = flags.DEFINE_list("expert_ranks", [], "Instances that divide experts, such as backbone:8 (ep).")
_OUTPUT = flags.DEFINE_string("output", "", "File to write the chosen plan to.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON document instead of tables.")


def main() -> int:
    """Every policy's plan side by side, then the choice; raises PlanError if nothing fits."""
    problem = planning_flags.read_problem(given=_given())
    from mmjax.plan_report import plan_document, print_comparison, report_console
    from sharding.planners.auto import POLICIES, choose, run_policy
    from sharding.planners.candidates import relax

    names = tuple(POLICIES) if _POLICY.value == "auto" else (_POLICY.value,)
    outcomes = [run_policy(problem, name) for name in names]
    choice = choose(problem, outcomes)
    bound = float(relax(problem).seconds.min())
    if _JSON.value:
        print(json.dumps(plan_document(problem, outcomes, choice, bound)))
    else:
        print_comparison(problem, outcomes, choice, bound, report_console())
    if _OUTPUT.value:
        pathlib.Path(_OUTPUT.value).write_text(choice.plan.to_json(), encoding="utf-8")
        if not _JSON.value:
            print(f"Written to {_OUTPUT.value}")
    return 0


def _given() -> "dict[str, Given]":
    """Sequence and expert ranks by module."""
    from sharding.planners.given import Given

    cp, ep = _ranks("sequence_ranks", _SEQUENCE_RANKS.value), _ranks("expert_ranks", _EXPERT_RANKS.value)
    return {name: Given(cp.get(name, 1), ep.get(name, 1)) for name in dict.fromkeys((*cp, *ep))}


def _ranks(flag: str, entries: list[str]) -> dict[str, int]:
    from configs.errors import UserError

    found: dict[str, int] = {}
    for entry in entries:
        name, _, count = entry.partition(":")
        if not name or not count.isdecimal() or not int(count) or name in found:
            raise UserError(f"--{flag} has {entry!r}; give a module once, with a number from 1, such as backbone:4")
        found[name] = int(count)
    return found


if __name__ == "__main__":
    cli.run(main)
