"""`python -m mmjax.launch`: runs a command in several processes on this host, and supervises them."""

import dataclasses
import functools
import importlib
import pathlib
import pkgutil
import sys
import tempfile

from mmjax import cli
from mmjax.cli.distributed import has_accelerator, launched_tasks
from mmjax.cli.flags import REST
from mmjax.launching.local_processes import LaunchSettings
from mmjax.launching.restart_limit import RestartLimit
from mmjax.launching.supervisor import supervise

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
    restart_window: float = cli.flag(
        3600.0, "Seconds within which restarts are counted.", metavar="SECONDS", parse=cli.number(1)
    )
    command: tuple[str, ...] = cli.flag((), "", metavar="COMMAND [--name=value ...]", name=REST)


def prepare(arguments: LaunchArguments) -> cli.Work:
    """Checks the flags, those of the command too."""
    name, *argv = arguments.command or [""]
    workdir = _workdir(name, argv)
    if arguments.restarts and (name != RESUMABLE or not workdir):
        raise cli.UserError(f"--restarts={arguments.restarts} needs -- {RESUMABLE} --workdir=FOLDER, to resume there")
    if arguments.processes > 1 and arguments.devices is None and has_accelerator():
        raise cli.UserError(
            f"--processes={arguments.processes} needs --devices=N on this host: so many accelerators has each process"
        )
    tasks, variable = launched_tasks()
    if tasks > 1:
        raise cli.UserError(
            f"{variable} = {tasks}: another launcher has started {tasks} tasks already; let it start "
            f"python -m mmjax {name} itself, or unset {variable}"
        )
    return functools.partial(launch, arguments, workdir)


def _workdir(name: str, argv: list[str]) -> pathlib.Path | None:
    """The folder in which the command works, as far as its flags say so; raises UserError for a wrong command line."""
    from mmjax import commands

    names = [module.name for module in pkgutil.iter_modules(commands.__path__) if module.name != "launch"]
    if name not in names:
        what = f"there is no command {name!r}{cli.nearest(name, names)}" if name else "no command follows --"
        raise cli.UserError(f"{what}: write mmjax launch --processes=2 {REST} train --workdir=FOLDER, for example")
    command: cli.Command = importlib.import_module(f"{commands.__name__}.{name}").COMMAND
    workdir = getattr(command.parse(argv, f"python -m mmjax {name}"), "workdir", "")
    return pathlib.Path(workdir) if workdir else None


def launch(arguments: LaunchArguments, workdir: pathlib.Path | None) -> int:
    """Runs the command in all processes; returns 0, or the exit code of the process that failed first."""
    logs = workdir or pathlib.Path(tempfile.mkdtemp(prefix="mmjax-launch-"))
    logs.mkdir(parents=True, exist_ok=True)
    settings = LaunchSettings(processes=arguments.processes, devices=arguments.devices, logs=logs)
    if settings.processes > 1:
        print(f"Output of the other processes: {settings.log(1).with_stem('process-*')}", flush=True)
    command = [sys.executable, "-m", "mmjax", *arguments.command]

    def restart_command() -> list[str]:
        from mmjax.training.checkpoints.discovery import saved_steps

        saved = workdir is not None and saved_steps(workdir / "checkpoints")
        return [*command, "--resume"] if saved and "--resume" not in command else command

    limit = RestartLimit(arguments.restarts, arguments.restart_window)
    return supervise(command, restart_command, settings, limit)


COMMAND = cli.Command(
    name="mmjax.launch",
    summary="Runs a command in several processes on this host, and supervises them.",
    examples=(
        "--processes=2 --devices=4 -- train --workdir=runs/two",
        "--processes=8 --devices=1 --restarts=3 -- train --workdir=runs/eight",
    ),
    arguments=LaunchArguments,
    prepare=prepare,
    distributed=False,
)
