"""The persistent compilation cache: compiled programs of earlier processes, in the user's cache folder.

jax finds an entry by a hash of the program, the XLA flags, the versions and the machine (on a CPU its instruction set
too), so an entry serves only where compiling again would give the same program. This file does not import jax: commands
call it before jax reads the environment.
"""

import os
import pathlib
import sys

FOLDER = "JAX_COMPILATION_CACHE_DIR"

SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.0,  # jax leaves out what compiles in less than a second
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1,
}
"""Settings of jax under which small programs are cached too; a step of a small model is nothing else."""

MAX_BYTES = 4 * 2**30
"""Size of the cache above which the oldest entries are deleted."""


def default_cache_folder() -> pathlib.Path:
    """`mmjax/compilation` in the user's cache folder: XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (pathlib.Path(base) if os.path.isabs(base) else pathlib.Path.home() / ".cache") / "mmjax" / "compilation"


def enable_compilation_cache(folder: pathlib.Path | None = None) -> None:
    """Lets this process reuse programs that earlier processes compiled, and keep its own for later ones.

    What the user has set stays: with JAX_COMPILATION_CACHE_DIR nothing is changed here, and with
    JAX_ENABLE_COMPILATION_CACHE=false jax caches nothing. Processes may share the folder. In a run of several processes
    jax writes entries in the first one only; the programs of stages elsewhere are compiled in every run.

    Args:
        folder: Where they are kept; `default_cache_folder` by default.
    """
    folder = folder or default_cache_folder()
    if os.environ.get(FOLDER) or not _prepare(folder):
        return
    for variable, value in {FOLDER: str(folder), **SETTINGS}.items():
        if variable not in os.environ:
            _set(variable, value)


def _set(variable: str, value: str | int | float) -> None:
    """Sets an option of jax: in the environment, which child processes inherit, or in jax if it has read that."""
    os.environ[variable] = str(value)
    if "jax" in sys.modules:
        sys.modules["jax"].config.update(variable.lower(), value)


def _prepare(folder: pathlib.Path) -> bool:
    """Makes the folder and bounds its size; returns whether it can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _delete_oldest(folder, MAX_BYTES)
    except OSError:
        return False  # a read-only home, for example: programs are compiled as without a cache
    return os.access(folder, os.W_OK)


def _delete_oldest(folder: pathlib.Path, max_bytes: int) -> None:
    """Deletes the oldest entries until the others fit, and empty ones, which a killed process left.

    jax's own limit (`jax_compilation_cache_max_size`) reads every entry's time at every write, which takes seconds at
    thousands of small entries.
    """
    entries = []
    for path in folder.iterdir():
        status = path.stat()
        entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total > max_bytes or size == 0:
            path.unlink(missing_ok=True)
            total -= size
