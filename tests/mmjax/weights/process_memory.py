"""Memory of this process."""

import pathlib


def memory(kind: str) -> int:
    """Bytes of this process: `VmRSS` that it has, `VmHWM` the most that it had (since its start, unlike ru_maxrss)."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(kind))
