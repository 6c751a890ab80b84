"""`python -m mmjax.plan`: plans a configured model on a cluster by every policy, without that cluster.

A model of configs/models is planned on described data of configs/data, a training run on its own data set.
"""

import dataclasses
import functools
import json
import pathlib
from typing import TYPE_CHECKING

from mmjax import cli
from mmjax.planning.arguments import ProblemArguments, ProblemInputs, read_problem

if TYPE_CHECKING:
    from sharding.planners.tables.fixed_ranks import FixedRanks


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanArguments(ProblemArguments, cli.JsonArguments):
    """Flags of the command."""

    policy: str = cli.flag("auto", "Planning policy; auto compares all and takes the best.", metavar="NAME")
    cp: tuple[str, ...] = cli.flag(
        (),
        "Context-parallel ranks of each replica, by module, such as backbone:4.",
        metavar="RANKS",
        parse=cli.list_of(str),
    )
    ep: tuple[str, ...] = cli.flag(
        (),
        "Expert ranks, replicas that divide the experts, such as backbone:8.",
        metavar="RANKS",
        parse=cli.list_of(str),
    )
    rendezvous: bool = cli.flag(False, "Plans for hops that occupy the devices at both ends, as between processes.")
    output: str = cli.flag("", "File to write the chosen plan to.", metavar="FILE", parse=cli.output_file)


def prepare(arguments: PlanArguments) -> cli.Work:
    """Reads the problem and the policies."""
    inputs = read_problem(arguments)  # a gin file may import a file that registers a policy
    from sharding.planners.auto import PLANNING_POLICIES

    if arguments.policy not in (known := ("auto", *PLANNING_POLICIES)):
        raise cli.UserError(
            f"--policy={arguments.policy} is not one of {', '.join(known)}{cli.nearest(arguments.policy, known)}"
        )
    return functools.partial(plan, arguments, inputs, _fixed_ranks(arguments))


def plan(arguments: PlanArguments, inputs: ProblemInputs, fixed_ranks: "dict[str, FixedRanks]") -> int:
    """Prints the plan of every policy side by side, then the choice; raises PlanError if no plan fits."""
    from mmjax.planning.report import plan_document, print_comparison, report_console
    from sharding.planners.policy_comparison import compare_policies

    problem = dataclasses.replace(inputs.problem(fixed_ranks=fixed_ranks), rendezvous=arguments.rendezvous)
    comparison = compare_policies(problem, arguments.policy)
    if arguments.json:
        print(json.dumps(plan_document(comparison)))
    else:
        print_comparison(comparison, report_console())
    if arguments.output:
        pathlib.Path(arguments.output).write_text(comparison.plan.to_json(), encoding="utf-8")
        if not arguments.json:
            print(f"Written to {arguments.output}")
    return 0


def _fixed_ranks(arguments: PlanArguments) -> "dict[str, FixedRanks]":
    """Context-parallel and expert ranks by module."""
    from sharding.planners.tables.fixed_ranks import FixedRanks

    cp, ep = _ranks("cp", arguments.cp), _ranks("ep", arguments.ep)
    return {name: FixedRanks(cp.get(name, 1), ep.get(name, 1)) for name in dict.fromkeys((*cp, *ep))}


def _ranks(flag: str, entries: tuple[str, ...]) -> dict[str, int]:
    ranks: dict[str, int] = {}
    for entry in entries:
        name, _, count = entry.partition(":")
        if not name or not count.isdecimal() or not int(count) or name in ranks:
            raise cli.UserError(f"--{flag} has {entry!r}; give a module once, with a number from 1, such as backbone:4")
        ranks[name] = int(count)
    return ranks


COMMAND = cli.Command(
    name="mmjax.plan",
    summary="Plans a configured model on a cluster by every policy, without that cluster.",
    examples=("--gin_file=models/mllm_72b.gin --devices=1296 --output=plan.json",),
    arguments=PlanArguments,
    prepare=prepare,
)
