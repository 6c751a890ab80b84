"""Submeshes of stages for tests."""

from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from sharding.runtime.meshes import submesh


def stage_mesh(devices: Sequence[jax.Device], dp: int, tp: int, ep: int = 1, fsdp: int = 1) -> Mesh:
    """The submesh of a stage whose modules all have one tensor-parallel size."""
    sharded = max(ep, fsdp)
    return submesh(devices, {"data": dp // sharded, "fsdp": sharded // ep, "expert": ep, "tensor": tp})
