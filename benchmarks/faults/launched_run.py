"""A run started by `mmjax launch`, watched from outside: its output, its processes and its files."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from benchmarks.faults.training_run import RunFolder

POLL_SECONDS = 0.01
START_LINE = re.compile(r"\d+ x cpu, \d+ process")
"""The first line of every start of a run."""

STEP_LINE = re.compile(r"step (\d+)/")


class BoundExceededError(Exception):
    """Something did not happen within its time."""


class RunEndedError(Exception):
    """The launcher has ended.

    Attributes:
        code: Its exit code.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"the launcher ended with code {code}")
        self.code = code


class LaunchedRun:
    """Starts `mmjax launch -- train` in a session of its own.

    Args:
        folder: Its files.
        processes: How many processes.
        flags: More flags of `mmjax train`.
    """

    def __init__(self, folder: RunFolder, processes: int, *flags: str) -> None:
        self.folder, self.processes = folder, processes
        launch = [f"--processes={processes}", "--devices=1", "--restarts=1000"]
        train = ["train", f"--gin_file={folder.gin}", f"--workdir={folder.workdir}", *flags]
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", "mmjax.launch", *launch, "--", *train],
            env=folder.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._former = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._launcher.stdout
        for text in self._launcher.stdout:
            self.lines.append(text.rstrip())

    # ------------------------------------------------------------------ what there is to see

    def pids(self) -> dict[int, int]:
        """The ids of the processes of the run that have not ended, by rank."""
        pid_by_rank = {}
        for pid in _children(self._launcher.pid):
            with contextlib.suppress(OSError):
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                ranks = [int(text[15:]) for text in variables if text.startswith(b"JAX_PROCESS_ID=")]
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if ranks and b"train" in command and _is_alive(pid):
                    pid_by_rank[ranks[0]] = pid
        return pid_by_rank

    def expect_start(self) -> None:
        """Takes the output so far as the output of former starts."""
        self._former = len(self.lines)

    @property
    def last_start(self) -> int:
        """Number of the first line of the start that is expected or under way; before the start, of the next line."""
        return self._last(START_LINE)

    @property
    def last_step(self) -> int:
        """Number of the last line of a step of this start; before the first step, of the next line."""
        return self._last(STEP_LINE)

    def _last(self, pattern: re.Pattern[str]) -> int:
        numbers = range(len(self.lines) - 1, self._former - 1, -1)
        return next((number for number in numbers if pattern.match(self.lines[number])), len(self.lines))

    def steps_shown(self, since: int = 0) -> list[int]:
        """The steps of this start that are shown in lines from number `since`."""
        matches = map(STEP_LINE.match, self.lines[max(since, self.last_start) :])
        return [int(match[1]) for match in matches if match]

    def says(self, text: str, since: int = 0) -> bool:
        """Whether a line from number `since` has the text."""
        return any(text in line for line in self.lines[since:])

    def all_output(self) -> str:
        """The output and the logs of the other processes."""
        logs = [path.read_text(errors="replace") for path in self.folder.workdir.glob("process-*.log")]
        return "\n".join([*self.lines, *logs])

    def logs_say(self, text: str) -> int:
        """How often the output and the logs of the other processes have the text."""
        return self.all_output().count(text)

    def last_output(self, count: int = 15) -> list[str]:
        """The last lines of the output and of each log."""
        logs = [
            f"{path.name}: {line}"
            for path in sorted(self.folder.workdir.glob("process-*.log"))
            for line in path.read_text(errors="replace").splitlines()[-count:]
        ]
        return [*self.lines[-count:], *logs]

    def exit_code(self) -> int | None:
        """The exit code of the launcher; None while it runs."""
        return self._launcher.poll()

    # ------------------------------------------------------------------ waiting

    def wait_until(self, condition: Callable[[], bool], seconds: float, event: str) -> float:
        """Returns the time at which the condition is true.

        Args:
            condition: What is waited for; polled.
            seconds: The bound.
            event: What is waited for, in words.

        Raises:
            BoundExceededError: The condition was not true within the bound.
            RunEndedError: The launcher ended before.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if (code := self._launcher.poll()) is not None:
                self._reader.join(5)
                if condition():
                    break
                raise RunEndedError(code)
            if time.monotonic() > deadline:
                raise BoundExceededError(f"{event} did not happen within {seconds:g} s")
            time.sleep(POLL_SECONDS)
        return time.monotonic()

    def wait_for_end(self, seconds: float) -> int:
        """Waits until the launcher has ended; its exit code.

        Raises:
            BoundExceededError: It runs on.
        """
        with contextlib.suppress(RunEndedError):
            self.wait_until(lambda: False, seconds, "the end of the run")
        return self._launcher.wait()

    # ------------------------------------------------------------------ ending

    @contextlib.contextmanager
    def launcher_stopped(self):
        """The launcher does nothing while this is entered."""
        os.kill(self._launcher.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._launcher.pid, signal.SIGCONT)

    def kill_processes(self) -> None:
        """Kills all processes of the run at once, and what they started."""
        for pid in self.pids().values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def kill(self) -> None:
        """Ends everything that is left of the run, the launcher first."""
        children = _children(self._launcher.pid) if self._launcher.poll() is None else []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._launcher.pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self._launcher.wait()
        self._reader.join(5)


def kill_everything_started() -> None:
    """Kills all processes that this one has started, and theirs: also one whose start a signal has cut short."""
    for pid in _children(os.getpid()):
        for target in (pid, *_children(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)
        os.waitpid(pid, 0)


def _children(pid: int) -> list[int]:
    children = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, path.read_text().split())
    return children


def _is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is not one that has ended and waits to be asked how."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
