"""Set-up before JAX initializes: the devices of this process, and the other processes of the run."""

import glob
import importlib.metadata
import importlib.util
import os
import typing

from configs.errors import UserError

HOST_DEVICES_FLAG = "--xla_force_host_platform_device_count"

TASK_COUNT_VARIABLES = {
    "SLURM_NTASKS": "Slurm",
    "OMPI_COMM_WORLD_SIZE": "Open MPI",
    "PMI_SIZE": "MPI (PMI)",
    "MV2_COMM_WORLD_SIZE": "MVAPICH2",
    "WORLD_SIZE": "torchrun",
}
"""Environment variables in which launchers say how many tasks they started, and the launchers."""

DISTRIBUTED_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
"""Environment variables that place this process in a run of several."""

CPU_THREADS = "16"
"""Size of XLA's CPU thread pool (NPROC); with fewer threads than participants of the running collectives, they hang."""


class DistributedArguments(typing.TypedDict):
    """Arguments of `jax.distributed.initialize`."""

    coordinator_address: str
    num_processes: int
    process_id: int


def has_accelerator() -> bool:
    """Whether jax will find an accelerator here: JAX_PLATFORMS decides, else a device file together with its plugin."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return platforms.split(",")[0].strip() != "cpu"
    if glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*") and importlib.util.find_spec("libtpu"):
        return True
    device_files = glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/dxg") + glob.glob("/dev/kfd")
    return bool(device_files) and bool(importlib.metadata.entry_points(group="jax_plugins"))


def ensure_cpu_devices(count: int = 8) -> None:
    """Makes the CPU look like `count` devices if there is no accelerator; a count that the user has set stays.

    Works only before jax starts its backends.
    """
    if has_accelerator():
        return
    os.environ.setdefault("NPROC", CPU_THREADS)
    flags = os.environ.get("XLA_FLAGS", "")
    if HOST_DEVICES_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {HOST_DEVICES_FLAG}={count}".strip()


def _number(variable: str) -> int:
    value = os.environ[variable]
    try:
        return int(value)
    except ValueError:
        raise UserError(f"{variable} is {value!r} in the environment; it must be a whole number") from None


def launched_tasks() -> tuple[int, str]:
    """How many tasks the launcher started, and the environment variable that says so; (1, "") without a launcher."""
    counts = [(_number(variable), variable) for variable in TASK_COUNT_VARIABLES if os.environ.get(variable)]
    return max(counts, default=(1, ""))


def distributed_arguments() -> DistributedArguments | None:
    """The arguments of `jax.distributed.initialize` that the JAX_* variables give, or None without them.

    Raises:
        UserError: Some are set and others are not, or they disagree with each other or with the launcher.
    """
    missing = [variable for variable in DISTRIBUTED_VARIABLES if not os.environ.get(variable)]
    if len(missing) == len(DISTRIBUTED_VARIABLES):
        return None
    if missing:
        present = [variable for variable in DISTRIBUTED_VARIABLES if variable not in missing]
        raise UserError(
            f"{' and '.join(present)} in the environment, but not {' and '.join(missing)}: set all of "
            f"{', '.join(DISTRIBUTED_VARIABLES)} for a run of several processes, or none of them"
        )
    processes, process = _number("JAX_NUM_PROCESSES"), _number("JAX_PROCESS_ID")
    if not 0 <= process < processes:
        raise UserError(f"JAX_PROCESS_ID = {process} is not in 0..{processes - 1}, which JAX_NUM_PROCESSES allows")
    tasks, variable = launched_tasks()
    if variable and tasks != processes:
        raise UserError(f"JAX_NUM_PROCESSES = {processes}, but {variable} = {tasks}: every task must be one process")
    return {
        "coordinator_address": os.environ["JAX_COORDINATOR_ADDRESS"],
        "num_processes": processes,
        "process_id": process,
    }


def initialize_distributed() -> None:
    """Joins the processes of one run if a launcher started several tasks, or refuses: they are never separate runs.

    The JAX_* variables come first; without them jax detects the cluster (Slurm, Open MPI). It must be called before
    anything else of jax.

    Raises:
        UserError: There are several tasks, and they cannot be joined.
    """
    arguments = distributed_arguments()
    tasks, variable = launched_tasks()
    if arguments is None and tasks == 1:
        return
    if not has_accelerator():
        os.environ.setdefault("NPROC", CPU_THREADS)
    import jax  # only now: it reads the environment

    expected = arguments["num_processes"] if arguments else tasks
    try:
        if arguments is None:
            jax.distributed.initialize()
        else:
            jax.distributed.initialize(**arguments)
    except (ValueError, RuntimeError) as error:
        raise UserError(_refusal(expected, variable, f"jax.distributed.initialize: {error}")) from error
    if jax.process_count() != expected:
        raise UserError(_refusal(expected, variable, f"jax reports {jax.process_count()} processes"))


def _refusal(tasks: int, variable: str, reason: str) -> str:
    source = f"{TASK_COUNT_VARIABLES[variable]} ({variable} = {tasks})" if variable else f"JAX_NUM_PROCESSES = {tasks}"
    return (
        f"{source} says that this is one of {tasks} tasks, but they can't be joined into one run "
        f"({reason.rstrip('.')}). {tasks} separate runs in one workdir are refused. "
        f"Set {', '.join(DISTRIBUTED_VARIABLES)} in every task"
        + (f", or unset {variable} for a single process" if variable else "")
    )
