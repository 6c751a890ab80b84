"""`python -m mmjax.plan`: plans a configured model on a cluster by every policy, without that cluster.

    python -m mmjax.plan --gin_file=models/mllm_72b.gin --cluster=a800 --devices=1296 --output=plan.json

A model of configs/models is planned on described data of configs/data, a training run on its own data set.
"""

import json
import pathlib
from typing import TYPE_CHECKING

from absl import flags

from mmjax.planning import flags as planning_flags

if TYPE_CHECKING:
    from sharding.planners.fixed_ranks import FixedRanks

_POLICY = flags.DEFINE_string("policy", "auto", "Planning policy; auto compares all and takes the best.")
_CP = flags.DEFINE_list("cp", [], "Context-parallel ranks of each replica, by module, such as backbone:4.")
_EP = flags.DEFINE_list("ep", [], "Expert ranks, replicas that divide the experts, such as backbone:8.")
_OUTPUT = flags.DEFINE_string("output", "", "File to write the chosen plan to.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON document instead of tables.")


def main() -> int:
    """Prints the plan of every policy side by side, then the choice; raises PlanError if no plan fits."""
    problem = planning_flags.problem_from_flags(fixed_ranks=_fixed_ranks())
    from mmjax.planning.report import plan_document, print_comparison, report_console
    from sharding.planners.auto import PLANNING_POLICIES, best_result, run_policy
    from sharding.planners.relaxation import solve_relaxations

    names = tuple(PLANNING_POLICIES) if _POLICY.value == "auto" else (_POLICY.value,)
    results = [run_policy(problem, name) for name in names]
    choice = best_result(problem, results)
    bound = float(solve_relaxations(problem).seconds.min())
    if _JSON.value:
        print(json.dumps(plan_document(problem, results, choice, bound)))
    else:
        print_comparison(problem, results, choice, bound, report_console())
    if _OUTPUT.value:
        pathlib.Path(_OUTPUT.value).write_text(choice.plan.to_json(), encoding="utf-8")
        if not _JSON.value:
            print(f"Written to {_OUTPUT.value}")
    return 0


def _fixed_ranks() -> "dict[str, FixedRanks]":
    """Context-parallel and expert ranks by module."""
    from sharding.planners.fixed_ranks import FixedRanks

    cp, ep = _ranks("cp", _CP.value), _ranks("ep", _EP.value)
    return {name: FixedRanks(cp.get(name, 1), ep.get(name, 1)) for name in dict.fromkeys((*cp, *ep))}


def _ranks(flag: str, entries: list[str]) -> dict[str, int]:
    from configs.errors import UserError

    ranks: dict[str, int] = {}
    for entry in entries:
        name, _, count = entry.partition(":")
        if not name or not count.isdecimal() or not int(count) or name in ranks:
            raise UserError(f"--{flag} has {entry!r}; give a module once, with a number from 1, such as backbone:4")
        ranks[name] = int(count)
    return ranks
