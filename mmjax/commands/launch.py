"""`python -m mmjax.launch`: runs a command in several processes on this host, and supervises them."""

import dataclasses
import functools
import importlib
import os
import pathlib
import sys
import tempfile
from typing import TYPE_CHECKING, cast

from mmjax import cli
from mmjax.cli.flags import REST
from mmjax.distributed.devices import has_accelerator
from mmjax.distributed.placement import other_launchers
from mmjax.distributed.variables import Variables
from mmjax.launching.local_processes import LaunchSettings
from mmjax.launching.restart_limit import RestartLimit
from mmjax.launching.slots import Slots
from mmjax.launching.supervisor import supervise

if TYPE_CHECKING:
    from mmjax.commands.train import TrainArguments

RESUMABLE = "train"
"""The command that can go on where a failed run of it left off."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchArguments:
    """Flags of the command."""

    processes: int = cli.flag(1, "Number of processes on this host.", metavar="N", parse=cli.integer(1))
    devices: int | None = cli.flag(
        None,
        "Devices of each process: CPUs simulate so many, GPUs are dealt out in order. Needed with several processes on "
        "a host with accelerators.",
        metavar="N",
        parse=cli.integer(1),
    )
    restarts: int = cli.flag(
        0,
        "Most restarts within --restart_window; each resumes from the newest whole checkpoint (train only).",
        metavar="N",
        parse=cli.integer(0),
    )
    min_processes: int | None = cli.flag(
        None,
        "Fewest processes with which a restart goes on, without one whose device check failed, or that failed twice in "
        "a row (train --plan=auto only).",
        metavar="N",
        parse=cli.integer(1),
    )
    restart_window: float = cli.flag(
        3600.0, "Seconds within which restarts are counted.", metavar="SECONDS", parse=cli.number(1)
    )
    command: tuple[str, ...] = cli.flag((), "", metavar="COMMAND [--name=value ...]", name=REST)


def prepare(arguments: LaunchArguments) -> cli.Work:
    """Checks the flags, including the flags of the command that is launched."""
    name, *argv = arguments.command or [""]
    command = _find_command(name)
    parsed = command.parse(argv, f"python -m mmjax {name}")
    folder = getattr(parsed, "workdir", "")
    workdir = pathlib.Path(folder) if folder else None
    if arguments.restarts and (name != RESUMABLE or not workdir):
        raise cli.UserError(f"--restarts={arguments.restarts} needs -- {RESUMABLE} --workdir=FOLDER, to resume there")
    if arguments.processes > 1 and not command.distributed:
        raise cli.UserError(f"--processes={arguments.processes} needs a command of several processes: train or verify")
    if arguments.processes > 1 and arguments.devices is None and has_accelerator():
        raise cli.UserError(
            f"--processes={arguments.processes} needs --devices=N on this host: so many accelerators has each process"
        )
    launchers = other_launchers(Variables(os.environ))
    if launchers:
        raise cli.UserError(
            f"another launcher has started this process already: {launchers}; let it start python -m mmjax {name} "
            "itself, or unset its variables"
        )
    if arguments.min_processes is not None:
        if name != RESUMABLE or not workdir:
            raise cli.UserError(f"--min_processes={arguments.min_processes} needs -- {RESUMABLE} --workdir=FOLDER")
        _check_elastic(arguments, arguments.min_processes, cast("TrainArguments", parsed), workdir)
    return functools.partial(launch, arguments, workdir)


def _find_command(name: str) -> cli.Command:
    """The command of a name; raises UserError if there is none."""
    from mmjax import commands

    names = [command for command in commands.NAMES if command != "launch"]
    if name not in names:
        problem = f"there is no command {name!r}{cli.nearest(name, names)}" if name else "no command follows --"
        raise cli.UserError(f"{problem}: write mmjax launch --processes=2 {REST} train --workdir=FOLDER, for example")
    return importlib.import_module(f"{commands.__name__}.{name}").COMMAND


def _check_elastic(
    arguments: LaunchArguments, min_processes: int, command: "TrainArguments", workdir: pathlib.Path
) -> None:
    """Raises UserError unless the run can be planned for fewer devices, and from a profile that is there."""
    from mmjax.planning.automatic import AUTO, PROFILE_FILE

    if min_processes > arguments.processes or not arguments.restarts:
        raise cli.UserError(
            f"--min_processes={min_processes} needs --restarts=N, and --processes={min_processes} at least"
        )
    resumed = command.resume and not command.gin_file
    config = cli.run_config(workdir, command) if resumed else cli.training_config(command)
    if config.plan != AUTO:
        raise cli.UserError(
            f"--min_processes={min_processes} needs --plan={AUTO}: the plan {config.plan or 'of one device'!r} is for "
            "one number of devices"
        )
    if not command.profile and not (workdir / PROFILE_FILE).is_file():
        raise cli.UserError(
            f"--min_processes={min_processes} needs a profile to plan from: write one by python -m mmjax.profile and "
            "pass --profile=FILE"
        )


def launch(arguments: LaunchArguments, workdir: pathlib.Path | None) -> int:
    """Runs the command in all processes; returns 0, or the exit code of the process that failed first."""
    logs = workdir or pathlib.Path(tempfile.mkdtemp(prefix="mmjax-launch-"))
    logs.mkdir(parents=True, exist_ok=True)
    settings = LaunchSettings(devices=arguments.devices, logs=logs)
    slots = Slots(tuple(range(arguments.processes)), arguments.min_processes or arguments.processes)
    if arguments.processes > 1:
        print(f"Output of the other processes: {settings.log(1).with_stem('process-*')}", flush=True)
    command = [sys.executable, "-m", "mmjax", *arguments.command]

    def restart_command() -> list[str]:
        from mmjax.training.checkpoints.discovery import saved_steps

        saved = workdir is not None and saved_steps(workdir / "checkpoints")
        return [*command, "--resume"] if saved and "--resume" not in command else command

    limit = RestartLimit(arguments.restarts, arguments.restart_window)
    return supervise(command, restart_command, slots, settings, limit)


COMMAND = cli.Command(
    name="mmjax.launch",
    summary="Runs and supervises a command in several local processes.",
    examples=(
        "--processes=2 --devices=4 -- train --workdir=runs/two",
        "--processes=8 --devices=1 --restarts=3 -- train --workdir=runs/eight",
    ),
    arguments=LaunchArguments,
    prepare=prepare,
)
