"""`mmjax.use_cpu_devices`: the CPU as several devices, for a laptop or a notebook."""

import sys

from configs.common.errors import UserError
from mmjax.distributed.devices import ensure_cpu_devices


def use_cpu_devices(count: int = 8) -> None:
    """Makes the CPU look like `count` devices, as the commands do where there is no accelerator.

    Call it before jax computes anything. It does nothing where there is an accelerator, or where `XLA_FLAGS` has a
    number of devices already.

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
