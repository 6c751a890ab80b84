"""Values of flags that a command line leaves out, from the purpose that is recorded in the plan which it names.

`problem_inputs.py` completes the flags of `mmjax.simulate` by it.
"""

import dataclasses
import pathlib
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmjax import cli
from mmjax.planning.arguments import ProblemArguments

if TYPE_CHECKING:
    from sharding.plans.plan_purpose import NamedConfiguration, PlanPurpose

CONFIGURATION_FLAGS = ("gin_file", "cluster", "devices", "profile", "hops", "without")
"""Flags of any configuration that a plan may give; without `--gin_file` also `ROW_FLAGS`."""

ROW_FLAGS = ("batch_rows", "grouping")
"""Flags of the rows of a step; `--batch_samples` stands in place of the first."""

MODEL_FLAGS = ("data", *ROW_FLAGS, "trainable")
"""Flags of a model without a workload that a plan may give; another configuration has these values itself."""

DESCRIBED_DATA = "data"
"""Folder of the configs package whose files describe data."""


def flags_from_plan(
    arguments: ProblemArguments, made_for: "PlanPurpose | None", names: Sequence[str]
) -> ProblemArguments:
    """Completes a command line: flags of these names that it leaves out get the values that a plan was made for.

    Raises:
        UserError: It leaves out `--gin_file` or `--data`, and the plan names none or files that may run any program;
            or the profile or cluster, which are not here.
    """
    if made_for is None:
        return arguments
    if arguments.batch_samples:  # the rows follow from them
        names = [name for name in names if name != "batch_rows"]
    left_out = {field.name: field.default for field in dataclasses.fields(arguments)}
    offered: dict[str, Any] = {
        **dataclasses.asdict(made_for.configuration),
        "cluster": made_for.cluster,
        "devices": made_for.devices,
        "batch_rows": made_for.rows,
        "hops": made_for.hops,
        "without": () if arguments.profile else made_for.without,  # measured costs have no effects to leave out
    }
    if "gin_file" in names and not arguments.gin_file:
        _require_own_files(made_for.configuration)
    if "data" in names and not arguments.data and offered["data"].endswith(".gin"):
        raise cli.UserError(
            "--data is missing: the plan was made with described data of your own, which may run any program, so it is "
            f"read only by the flag: --data={shlex.quote(offered['data'])}"
        )
    if not cli.is_packaged(offered["data"], DESCRIBED_DATA):  # the name of a training run's data set
        offered["data"] = ""
    taken = {name: offered[name] for name in names if offered[name] and getattr(arguments, name) == left_out[name]}
    _require_known(taken, made_for)
    return dataclasses.replace(arguments, **taken)


def _require_known(taken: dict[str, Any], made_for: "PlanPurpose") -> None:
    """Raises UserError if the profile or the cluster of a plan is not here."""
    from configs.clusters import CLUSTERS
    from mmjax.planning.cluster_files import HARDWARE

    cluster = taken.get("cluster")
    if (
        cluster
        and not made_for.described_cluster
        and cluster not in CLUSTERS
        and not cli.is_packaged(cluster, HARDWARE)
    ):
        raise cli.UserError(
            f"the plan was made for the cluster {cluster!r}, which configs/clusters.py does not have; give --cluster, "
            f"one of {', '.join(CLUSTERS)}, or a gin file that describes one"
        )
    if "profile" in taken and not pathlib.Path(taken["profile"]).is_file():
        raise cli.UserError(
            f"the plan was made by the profile {taken['profile']!r}, which is not here; give --profile, or remove it "
            "from the plan's made_for.configuration to use the analytic costs"
        )


def _require_own_files(configuration: "NamedConfiguration") -> None:
    """Raises UserError unless a configuration is of mmjax's own files: a gin file is a program, and a plan is not."""
    if not configuration.gin_file:
        raise cli.UserError(
            "--gin_file is missing: the plan does not name the configuration that it was made for; give --gin_file"
        )
    if configuration.gin or not all(map(cli.is_packaged, configuration.gin_file)):
        files = [f"--gin_file={name}" for name in configuration.gin_file]
        bindings = [f"--gin.{binding.replace(' = ', '=', 1)}" for binding in configuration.gin]
        raise cli.UserError(
            "--gin_file is missing: the plan was made with a configuration of your own, which may run any program, so "
            f"it is read only by flags: {' '.join(map(shlex.quote, files + bindings))}"
        )


def taken_flags(given: ProblemArguments, completed: ProblemArguments) -> str:
    """Returns the flags of a completed command line that were not given, as they would be written; empty for none."""
    written = []
    for field in dataclasses.fields(completed):
        value = getattr(completed, field.name)
        if value != getattr(given, field.name):
            values = value if field.name == "gin_file" else [",".join(value) if isinstance(value, tuple) else value]
            written += [f"--{field.name}={argument}" for argument in values]
    return " ".join(map(shlex.quote, written))
