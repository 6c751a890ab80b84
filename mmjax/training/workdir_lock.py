"""The lock on a workdir: one run at a time writes there, and a second run gets an error that names the first.

The lock is an flock on `run.lock`, which the operating system releases when the process ends, however it ends; the
file's text names the holder. So a lock whose process is gone is recognised even if another process has its id now.
Locks of some network file systems do not reach other hosts: a file that another host left is not taken over.
"""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import json
import logging
import os
import pathlib
import socket
import sys
from collections.abc import Iterator

from configs.common.errors import UserError
from configs.common.strict_json import read_json_file
from configs.common.whole_files import naming

_LOG = logging.getLogger(__name__)

LOCK_FILE = "run.lock"
"""File of a workdir that is there while a run writes to it."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems that have no locks."""


class WorkdirInUseError(UserError):
    """Another run writes to the workdir, or may do so."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LockHolder:
    """The holder of a lock, as the text of a lock file.

    Attributes:
        host: Name of the host.
        pid: Process id there.
        birth: Boot and start of the process (`process_birth`), which distinguish it from others with the same id.
        started: Time at which the lock was taken, in the host's local time.
        command: The command line.
    """

    host: str
    pid: int
    birth: str
    started: str
    command: str

    @classmethod
    def this_process(cls) -> "LockHolder":
        """Makes the record of this process, from now on."""
        started = datetime.datetime.now().isoformat(" ", "seconds")
        pid = os.getpid()
        return cls(
            host=socket.gethostname(),
            pid=pid,
            birth=process_birth(pid) or "",
            started=started,
            command=" ".join(sys.argv),
        )

    @classmethod
    def read(cls, path: pathlib.Path) -> "LockHolder | None":
        """Reads the holder that a lock file names; None if it is empty or cut off, as a killed writer leaves it."""
        try:
            return cls(**read_json_file(path))
        except (UserError, TypeError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.started} ({self.command})"


def process_birth(pid: int) -> str | None:
    """Returns boot and clock ticks at which a process of this host started; None if it does not exist, or off Linux.

    In each start of a container the command has the same id, and the name of the host may be the same too.
    """
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        fields = pathlib.Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()  # without id and name
        return f"{boot} {int(fields[19])}"
    except (OSError, ValueError, IndexError):
        return None


@contextlib.contextmanager
def locked_workdir(workdir: pathlib.Path, takes: bool = True) -> Iterator[None]:
    """Holds the lock on a workdir, which is made if it is not there. Reading the workdir takes no lock.

    Args:
        workdir: Folder of the run.
        takes: Whether this process takes the lock; of a run's processes, the first alone does.

    Raises:
        WorkdirInUseError: Another run holds the lock, or another host left it; the message names process and host.
    """
    if not takes:
        yield
        return
    workdir.mkdir(parents=True, exist_ok=True)
    path = workdir / LOCK_FILE
    descriptor, locked = _open_locked(path)
    try:
        _refuse_unless_stale(path, locked)
        try:
            with naming(path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(dataclasses.asdict(LockHolder.this_process())).encode())
            yield
        finally:
            path.unlink(missing_ok=True)  # while it is locked, so that it is this run's file
    finally:
        os.close(descriptor)


def _open_locked(path: pathlib.Path) -> tuple[int, bool]:
    """Returns a descriptor of the file at `path`, and whether it is locked; some file systems have no locks."""
    while True:
        descriptor, locked = os.open(path, os.O_RDWR | os.O_CREAT, 0o644), True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise _in_use(path, LockHolder.read(path)) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise
            locked = False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor, locked
        os.close(descriptor)  # the run that held it has removed the file since it was opened


def _refuse_unless_stale(path: pathlib.Path, locked: bool) -> None:
    """Raises WorkdirInUseError if the run that a lock file names may still go on; reports a lock left behind."""
    holder = LockHolder.read(path)
    if holder is None:
        return
    if holder.host != socket.gethostname():
        raise WorkdirInUseError(
            f"{path.parent} was locked by {holder}, and this host cannot tell whether that run goes on: "
            f"if it has ended, delete {path}; if not, choose another workdir"
        )
    if not locked and _is_alive(holder):
        raise _in_use(path, holder)
    _LOG.warning("%s was left by %s, which has ended; this run takes the workdir over", path, holder)


def _in_use(path: pathlib.Path, holder: LockHolder | None) -> WorkdirInUseError:
    if holder and (holder.pid, holder.host) == (os.getpid(), socket.gethostname()):
        return WorkdirInUseError(
            f"{path.parent} is in use by this process: close its other Trainer, or choose another workdir"
        )
    return WorkdirInUseError(
        f"{path.parent} is in use by {holder or 'a run that is just starting'}; "
        "wait until it ends, or choose another workdir"
    )


def _is_alive(holder: LockHolder) -> bool:
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return process_birth(holder.pid) in (None, holder.birth)
