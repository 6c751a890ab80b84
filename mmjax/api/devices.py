"""`mmjax.use_cpu_devices`: the CPU as several devices, for a laptop or a notebook."""

import sys

from configs.common.errors import UserError
from mmjax.distributed.devices import ensure_cpu_devices


def use_cpu_devices(count: int = 8) -> None:
    """Makes the CPU look like `count` devices, as the commands do where there is no accelerator.

    Call it before jax computes anything. Where there is an accelerator, it only gives XLA's allocator the share of the
    memory that plans count with (`XLA_CLIENT_MEM_FRACTION`); a number of devices in `XLA_FLAGS` stays.

    Raises:
        UserError: jax has started with fewer devices.
    """
    ensure_cpu_devices(count)
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not bridge.backends_are_initialized():
        return
    import jax

    if jax.device_count() < count and jax.default_backend() == "cpu":
        raise UserError(
            f"jax has started with {jax.device_count()} devices, not {count}; call mmjax.use_cpu_devices({count}) "
            "first thing in the program, or restart the notebook's kernel"
        )
