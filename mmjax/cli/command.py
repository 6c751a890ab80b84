"""Running a command: its flags, its devices, the processes of a run, its exit code.

Every module of `mmjax.commands` declares a `Command`, and `mmjax/NAME.py` passes it to `run`.
"""

import atexit
import dataclasses
import errno
import gc
import os
import select
import signal
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Generic

from configs.common.errors import (
    DEVICE_FAILED,
    INTERRUPTED,
    OUTPUT_CLOSED,
    PROCESS_LOST,
    STORAGE_FAILED,
    USAGE_ERROR,
    UserError,
)
from configs.common.shown_text import one_line
from mmjax.cli.flags import Arguments, parse_flags
from mmjax.cli.gin_errors import without_call_chain
from mmjax.cli.log_lines import show_logs_as_lines
from mmjax.distributed.devices import ensure_cpu_devices
from mmjax.distributed.gloo_lines import hide_gloo_lines
from mmjax.distributed.joining import initialize_distributed
from mmjax.training.heartbeat.leaving import leave_at_once
from mmjax.training.interrupt_answers import answered_interrupts
from sharding.runtime.compilation_cache import enable_compilation_cache

_STORAGE_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE)

_STOPPING = "stopping when the program that runs or compiles now ends; Ctrl-C again leaves at once"
_PATIENCE = 1.0  # seconds in which most commands have stopped

# Tracing makes millions of objects that live on, among which collections as frequent as Python's own find nothing: a
# twelfth of the start of a training run.
_GARBAGE_THRESHOLDS = (50_000, 20, 20)

Work = Callable[[], int | None]
"""The work of a command after its checks: returns the exit code, or None for 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Generic[Arguments]):
    """A command.

    Attributes:
        name: Name of the module that `python -m NAME` runs.
        summary: A sentence that says what the command does.
        examples: Flags of command lines that show its use.
        arguments: Dataclass whose fields are the command's flags (`mmjax.cli.flags`).
        prepare: Reads and checks the user's input, and returns the work, which does not read the flags again.
        distributed: Whether the tasks that a launcher started are the processes of one run of jax; if not, each
            runs the command on its own, beside a run whose variables it inherits.
    """

    name: str
    summary: str
    examples: tuple[str, ...]
    arguments: type[Arguments]
    prepare: Callable[[Arguments], Work]
    distributed: bool = False

    def parse(self, argv: Sequence[str], program: str = "") -> Arguments:
        """Parses the flags of a command line without its program; raises UserError for one that is wrong."""
        return parse_flags(self.arguments, argv, program or f"python -m {self.name}", self.summary, self.examples)


def run(command: Command, argv: Sequence[str] | None = None, program: str = "") -> typing.NoReturn:
    """Prepares this process, runs a command and exits with its exit code.

    One of several processes that ends by an error does not wait for the others, as jax does at exit: they may wait for
    it. They end because it is gone.

    Args:
        command: The command.
        argv: Its command line without the program; by default the command line of this process.
        program: Name of the program in `--help`; `python -m` and the command's name by default.
    """
    code = 1  # the exit code of an exception which leaves this function

    def leave_after_error() -> None:
        # After a failed device check all processes end, and a launcher must see the code of the failed one first.
        if code not in (0, DEVICE_FAILED, PROCESS_LOST):
            leave_at_once(code)

    def work() -> int | None:
        arguments = command.parse(sys.argv[1:] if argv is None else argv, program)
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        show_logs_as_lines()
        ensure_cpu_devices()
        enable_compilation_cache()
        if command.distributed and initialize_distributed():
            # At exit the last that was registered comes first: this one after the heartbeat's, and before jax's.
            atexit.register(leave_after_error)
            hide_gloo_lines()
        return command.prepare(arguments)()

    with answered_interrupts(_STOPPING, _PATIENCE, _is_interrupted_by_default):
        code = exit_code(work)
    sys.exit(code)


def exit_code(work: Work) -> int:
    """Does the work and returns the exit code; an error of the user or of a file, and Ctrl-C, print one line."""
    try:
        code = work() or 0
    except UserError as error:
        print(f"error: {one_line(without_call_chain(str(error)))}", file=sys.stderr)
        code = error.exit_code
    except BrokenPipeError:
        if not _is_output_closed():  # another pipe, such as one to a worker process
            raise
        code = OUTPUT_CLOSED
    except OSError as error:
        is_storage_fault = error.errno in _STORAGE_FAULTS
        if error.filename is None and not is_storage_fault:
            raise
        where = "" if error.filename is None else f"{os.fspath(error.filename)}: "
        print(f"error: {one_line(f'{where}{error.strerror}')}", file=sys.stderr)
        code = STORAGE_FAILED if is_storage_fault else USAGE_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # so rich's console ends a program whose output is closed
            code = OUTPUT_CLOSED
        elif leaving.code:
            raise
        else:  # argparse, after `--help`
            code = 0
    closed = _flush_output()
    return code or closed


def _is_interrupted_by_default() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt; a training run, a launcher and a server handle it themselves."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _is_output_closed() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _flush_output() -> int:
    """Flushes standard output; returns an exit code if nobody reads it any more, else 0.

    The interpreter would do so when it exits, and print a traceback. As Python's documentation of SIGPIPE advises, its
    attempt goes to the null device then.
    """
    if sys.stdout is None:  # it was closed before the program started
        return 0
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED
    return 0
