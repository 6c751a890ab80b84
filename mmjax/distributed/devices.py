"""The devices of this process, before jax starts: emulated CPU devices, and the GPUs that the process takes."""

import glob
import importlib.metadata
import importlib.util
import os

from configs.clusters import ALLOCATOR_SHARE
from configs.common.errors import UserError
from mmjax.distributed.environments import ProcessPlacement

ALLOCATOR_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""The share of a GPU's memory that XLA's allocator takes, and the variable's former name."""

HOST_DEVICES_FLAG = "--xla_force_host_platform_device_count"

CPU_THREADS = "16"
"""Size of XLA's CPU thread pool (NPROC); with fewer threads than participants of the running collectives, they hang."""


def has_accelerator() -> bool:
    """Whether jax will find an accelerator here: JAX_PLATFORMS decides, else a device file together with its plugin."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return platforms.split(",")[0].strip() != "cpu"
    if glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*") and importlib.util.find_spec("libtpu"):
        return True
    device_files = glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/dxg") + glob.glob("/dev/kfd")
    return bool(device_files) and bool(importlib.metadata.entry_points(group="jax_plugins"))


def set_allocator_share() -> None:
    """Gives XLA's allocator the share of GPUs' memory that plans count with, unless the user has set another.

    Works only before jax starts its backends; jax takes 75% by default.
    """
    if not any(name in os.environ for name in ALLOCATOR_VARIABLES):  # jax refuses both at once
        os.environ[ALLOCATOR_VARIABLES[0]] = str(ALLOCATOR_SHARE)


def ensure_cpu_devices(count: int = 8) -> None:
    """Makes the CPU look like `count` devices if there is no accelerator; a count that the user has set stays.

    Works only before jax starts its backends. Of an accelerator, it sets the allocator's share of the memory.
    """
    if has_accelerator():
        set_allocator_share()
        return
    os.environ.setdefault("NPROC", CPU_THREADS)
    flags = os.environ.get("XLA_FLAGS", "")
    if HOST_DEVICES_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {HOST_DEVICES_FLAG}={count}".strip()


def visible_gpus() -> int:
    """How many GPUs of this host the process may use: the GPUs in CUDA_VISIBLE_DEVICES, else all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len(glob.glob("/dev/nvidia[0-9]*"))


def local_device_ids(placement: ProcessPlacement, visible: int) -> list[int] | None:
    """Returns the numbers of this process's GPUs, an equal share of its host's visible GPUs; None for all.

    A launcher that gives the number within the host but no count, as `LOCAL_RANK` alone, starts one process a GPU.

    Args:
        placement: The place of the process.
        visible: GPUs that the process sees: all of the host, or its own if the launcher hides the others.

    Raises:
        UserError: They cannot be shared equally.
    """
    local, count = placement.local_process, placement.local_processes
    if local is None or visible <= 1 or count == 1:
        return None
    count = visible if count is None else count
    if count == 0 or visible % count or local >= count:
        raise UserError(
            f"process {placement.process} is number {local} of {count} on its host, which shows it {visible} GPUs: "
            "start as many processes as GPUs, one on each host, or set JAX_LOCAL_DEVICE_IDS"
        )
    share = visible // count
    return list(range(local * share, (local + 1) * share))
