"""Runs a command that compiles for devices that are not here."""

import os

from mmjax import cli


def run_without_devices(command: cli.Command) -> None:
    """Runs a command with jax on the CPU; jax must not have been imported yet."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # jax cannot read programs for devices that are not here
    cli.run(command)
