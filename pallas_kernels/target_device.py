"""The kind of device that a program is traced for, by which kernels choose among their implementations."""

import re
from typing import NamedTuple

import jax

_HOPPER = re.compile(r"\bG?H\d+")
"""Device kinds of compute capability 9.0: NVIDIA H100, H200, H800, H20, GH200 and their variants."""

_WITHOUT_FP8 = re.compile(r"\b(A\d+\w?|RTX A\d+|GeForce RTX [23]0\d+|[KMPTV]\d+)\b")
"""NVIDIA device kinds before compute capability 8.9 (Ada), such as `NVIDIA A100-SXM4-80GB`."""

H100_MULTIPROCESSORS = 132


class TargetDevice(NamedTuple):
    """A kind of device.

    Attributes:
        platform: JAX's name of its platform, such as `cpu`, `gpu` or `cuda`.
        kind: Its device kind, such as `NVIDIA H100 80GB HBM3`; "" where it is not known.
        multiprocessors: Its number of multiprocessors; an H100's where it is not known.
    """

    platform: str
    kind: str
    multiprocessors: int

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.platform in ("gpu", "cuda")

    @property
    def is_hopper(self) -> bool:
        """Whether it is a GPU of compute capability 9.0, by its kind."""
        return bool(_HOPPER.search(self.kind))

    @property
    def has_fp8(self) -> bool:
        """Whether it multiplies FP8, by its kind; GPUs of an unknown kind count as new ones."""
        return self.is_gpu and not _WITHOUT_FP8.search(self.kind)


def target_device(mesh: jax.sharding.AbstractMesh | None = None) -> TargetDevice:
    """The devices of the mesh in `jax.shard_map`, which may be described and not there; else the default devices."""
    described = (mesh or jax.sharding.get_abstract_mesh()).abstract_device
    if described is not None:
        return TargetDevice(described.platform, described.device_kind, described.num_cores or H100_MULTIPROCESSORS)
    multiprocessors = getattr(jax.devices()[0], "core_count", None) or H100_MULTIPROCESSORS
    kind = "" if jax.default_backend() == "cpu" else jax.devices()[0].device_kind
    return TargetDevice(jax.default_backend(), kind, multiprocessors)
