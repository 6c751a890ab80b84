"""`python -m mmjax.plan`: plans a configured model on a cluster by every policy, without that cluster.

A model of configs/models is planned on described data of configs/data, a training run on its own data set.
"""

import dataclasses
import functools
import json
import pathlib
from typing import TYPE_CHECKING, Any, cast

from configs.common.errors import INTERRUPTED
from configs.common.whole_files import naming
from mmjax import cli
from mmjax.planning.arguments import ProblemArguments
from mmjax.planning.problem_inputs import ProblemInputs, read_problem

if TYPE_CHECKING:
    from configs.clusters import ClusterConfig
    from mmjax.planning.timed_plans import TimedPlans
    from mmjax.training.config import TrainConfig
    from sharding.planners.policies.policy_comparison import PolicyComparison
    from sharding.planners.problem import PlanningProblem
    from sharding.planners.tables.fixed_ranks import FixedRanks

TIMED_STEPS = 5
"""Number of steps that are timed of each plan."""


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
    timed_plans: int = cli.flag(
        0,
        "Times so many of the best plans on this process's devices and takes the fastest; --cluster, --devices and "
        "--hops then default to these.",
        metavar="K",
        parse=cli.integer(0),
    )
    assumptions: bool = cli.flag(
        False, "Simulates the choice and the best other plan again with one assumption of the costs changed at a time."
    )
    output: str = cli.flag("", "File to write the chosen plan to.", metavar="FILE", parse=cli.output_file)


def prepare(arguments: PlanArguments) -> cli.Work:
    """Reads the problem and the policies."""
    here = None
    if arguments.timed_plans:
        arguments, here = _on_these_devices(arguments)
    inputs = read_problem(arguments, default_cluster=here)  # a gin file may import a file that registers a policy
    from sharding.planners.policies.auto import policy_fault

    if fault := policy_fault(arguments.policy):
        raise cli.UserError(f"--policy={arguments.policy} {fault}")
    if arguments.assumptions and arguments.policy != "auto":
        raise cli.UserError(
            f"--assumptions compares the plans of two policies, but --policy={arguments.policy} plans by one; leave it "
            "out"
        )
    if arguments.timed_plans:
        _check_is_training(arguments, inputs)
    return functools.partial(plan, arguments, inputs, _fixed_ranks(arguments))


def plan(arguments: PlanArguments, inputs: ProblemInputs, fixed_ranks: "dict[str, FixedRanks]") -> int:
    """Prints the plan of every policy side by side, then the choice; raises PlanError if no plan fits."""
    from configs.common.console import plain_console
    from mmjax.planning.assumptions import assumptions_document, print_assumptions, under_assumptions
    from mmjax.planning.report import plan_document, print_comparison

    comparison = _planned(arguments, inputs, fixed_ranks)
    problem, chosen = comparison.problem, comparison.plan
    document = plan_document(comparison) | _groupings_document(comparison) if arguments.json else {}
    if not arguments.json:
        print_comparison(comparison, plain_console())
        _print_groupings(comparison)
    if arguments.assumptions and not comparison.stopped:
        compared = under_assumptions(comparison)
        document |= {"assumptions": assumptions_document(compared)}
        if not arguments.json:
            print_assumptions(compared, plain_console())
    if comparison.stopped:  # a plan that others might have beaten is not written
        if arguments.json:
            print(json.dumps(document))
        return INTERRUPTED
    if arguments.timed_plans:
        timed = _time_plans(arguments, _training_config(inputs.config, problem), problem)
        chosen = timed.fastest.plan
        document |= {"timed": timed.document(), "plan": json.loads(chosen.to_json())}
    if arguments.json:
        print(json.dumps(document))
    if arguments.output:
        with naming(arguments.output):
            pathlib.Path(arguments.output).write_text(chosen.to_json(), encoding="utf-8")
        if not arguments.json:
            print(f"Written to {arguments.output}")
    return 0


def _planned(
    arguments: PlanArguments, inputs: ProblemInputs, fixed_ranks: "dict[str, FixedRanks]"
) -> "PolicyComparison":
    """Compares the policies, and the groupings of a workload of samples."""
    if not inputs.grouping:
        return _compare(inputs.problem(fixed_ranks=fixed_ranks), arguments)
    from mmjax.planning.samples.sample_plans import plan_samples

    return plan_samples(inputs, functools.partial(_compare, arguments=arguments), fixed_ranks)


def _groupings_document(comparison: "PolicyComparison") -> "dict[str, Any]":
    """Returns the groupings of a workload of samples as JSON; empty for other workloads."""
    from mmjax.planning.samples.report import groupings_document
    from mmjax.planning.samples.sample_plans import SampleComparison

    if not isinstance(comparison, SampleComparison):
        return {}
    return {"samples": groupings_document(comparison.groupings, comparison.rows)}


def _print_groupings(comparison: "PolicyComparison") -> None:
    """Prints the groupings of a workload of samples."""
    from configs.common.console import plain_console
    from mmjax.planning.samples.report import print_groupings
    from mmjax.planning.samples.sample_plans import SampleComparison

    if isinstance(comparison, SampleComparison):
        print_groupings(comparison.groupings, comparison.rows, plain_console())


def _training_config(config: "TrainConfig", problem: "PlanningProblem") -> "TrainConfig":
    """Returns the run with the rows of a problem and their grouping."""
    from mmjax.planning.problem import with_global_batch

    return cast("TrainConfig", with_global_batch(config, problem.rows, problem.configuration.grouping))


def _compare(problem: "PlanningProblem", arguments: PlanArguments) -> "PolicyComparison":
    """Compares the policies and shows progress; after Ctrl-C, returns the policies that had a result."""
    from configs.common.console import plain_console
    from mmjax.planning.result_progress import ResultProgress
    from mmjax.training.metrics.activity import COMPARING, ActivityDisplay, progress_console
    from sharding.planners.policies.policy_comparison import compare_policies, comparison_of

    with ActivityDisplay(progress_console(plain_console(), arguments.json)) as display:
        progress = ResultProgress(functools.partial(display.show, COMPARING), arguments.policy)
        try:
            comparison = compare_policies(problem, arguments.policy, progress.add)
            _ = comparison.on_fewer_devices
        except KeyboardInterrupt:
            if not any(result.simulated for result in progress.results):
                raise
            return comparison_of(problem, progress.results, stopped=True)
        progress.finish()
    return comparison


def _on_these_devices(arguments: PlanArguments) -> "tuple[PlanArguments, ClusterConfig]":
    """Returns the flags with the devices and hops of this process where they are left out, and the devices' cluster.

    Raises:
        UserError: There are fewer devices than the flags say.
    """
    import jax

    from mmjax.planning.automatic import cluster_of_devices
    from sharding.plans.plan_purpose import hops_of_processes

    count = jax.device_count()
    if arguments.devices and arguments.devices > count:
        raise cli.UserError(
            f"--timed_plans={arguments.timed_plans} runs plans on this process's devices, of which there are {count}, "
            f"fewer than --devices={arguments.devices}; leave --devices out, or plan without --timed_plans"
        )
    here = dataclasses.replace(
        arguments, devices=arguments.devices or count, hops=arguments.hops or hops_of_processes(jax.process_count())
    )
    return here, cluster_of_devices(jax.devices()[0].device_kind)


def _check_is_training(arguments: PlanArguments, inputs: ProblemInputs) -> None:
    """Raises UserError if there is no data to train on."""
    from configs.workloads import Workload

    if isinstance(inputs.config, Workload):
        raise cli.UserError(
            f"--timed_plans={arguments.timed_plans} trains steps, and {', '.join(inputs.configuration.gin_file)} "
            "describes a workload without data to train on; give a training configuration, such as "
            "--gin_file=easy_vqa.gin, or plan without --timed_plans"
        )


def _time_plans(arguments: PlanArguments, config: "TrainConfig", problem: "PlanningProblem") -> "TimedPlans":
    """Times the best candidates of the policies, and prints their times unless the output is JSON."""
    from configs.common.console import plain_console
    from mmjax.planning.candidate_plans import best_candidates
    from mmjax.planning.timed_plans import print_timed_plans, time_on_devices
    from mmjax.training.metrics.activity import COLLECTING, TIMING, display_activity, progress_console

    console = plain_console()
    with display_activity(COLLECTING, progress_console(console, arguments.json)) as show:
        candidates = best_candidates(problem, arguments.timed_plans, arguments.policy, show)
    plans = {name: candidate.plan for name, candidate in candidates.items()}
    with display_activity(TIMING, progress_console(console, arguments.json)) as show:
        timed = time_on_devices(config, problem, plans, TIMED_STEPS, show)
    if not arguments.json:
        print_timed_plans(timed, console)
        console.print(f"The fastest that was timed is chosen: {timed.fastest.name}.", soft_wrap=True)
    return timed


def _fixed_ranks(arguments: PlanArguments) -> "dict[str, FixedRanks]":
    """Returns the context-parallel and expert ranks that the flags fix, by module."""
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
    summary="Plans a model on a cluster, which need not be at hand.",
    examples=("--gin_file=models/mllm_72b.gin --devices=1296 --output=plan.json",),
    arguments=PlanArguments,
    prepare=prepare,
)
