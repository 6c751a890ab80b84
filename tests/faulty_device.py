"""Imported by the configuration of a run: the device of process 1 of 3 computes wrongly once there is a checkpoint."""

import functools
import os
import pathlib

import jax
import numpy as np
from jax.sharding import Mesh

from mmjax.training.start_checks import checks, device_check

CHECKPOINTS_VARIABLE = "CHECKPOINTS_BEFORE_THE_DEVICE_IS_FAULTY"
"""Environment variable: the folder of the run's checkpoints."""


def multiply_wrongly(mesh: Mesh, dtype: str, left: np.ndarray, right: np.ndarray) -> jax.Array:
    """The product, with a number too large by one."""
    return device_check.multiply(mesh, dtype, left, right).at[0, 3, 5].add(1)


if (os.environ.get("JAX_NUM_PROCESSES"), os.environ.get("JAX_PROCESS_ID")) == ("3", "1") and any(
    pathlib.Path(os.environ[CHECKPOINTS_VARIABLE]).glob("[0-9]*")
):
    checks.check_devices = functools.partial(device_check.check_devices, compute=multiply_wrongly)
