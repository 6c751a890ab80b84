"""Bytes of the optimizer's state for each element that trains, and whether they lie on the device or on its host.

A cost model has one; memory and the seconds of an update follow from it.
"""

import dataclasses
import functools
from typing import Any

from configs.optimizer import SGD, Adafactor, AdamW, Lion, Muon, OptimizerConfig, moment_dtype

MASTER_BYTES = 4
"""Bytes of a master weight, in float32."""

_BYTES = {"float32": 4, "bfloat16": 2}


@dataclasses.dataclass(frozen=True)
class OptimizerMemory:
    """What master weights and the optimizer's state take; by default AdamW's in float32, on the device.

    Attributes:
        moment_bytes: Bytes of the moments of an element that trains.
        on_host: Whether all of it lies in the memory of a device's host between its uses.
    """

    moment_bytes: int = 8
    on_host: bool = False

    @classmethod
    def of(cls, config: OptimizerConfig) -> "OptimizerMemory":
        """The memory of a configured optimizer."""
        moment_bytes = _moments(config.algorithm) * _BYTES[moment_dtype(config.algorithm)]
        return cls(moment_bytes, on_host=config.state_memory == "host")

    def state_bytes(self, parameters: Any, trained: Any) -> Any:
        """Bytes of master weights and moments, given the elements of all parameters and of the ones that train."""
        return MASTER_BYTES * parameters + self.moment_bytes * trained


@functools.singledispatch
def _moments(algorithm: Any) -> int:
    """Moments of an element of a large matrix; vectors and embeddings, which may have others, are counted alike."""
    raise TypeError(f"no moments are known for {type(algorithm).__name__}")


@_moments.register
def _(algorithm: AdamW) -> int:
    return 2


@_moments.register
def _(algorithm: Lion | SGD | Muon) -> int:
    return 1


@_moments.register
def _(algorithm: Adafactor) -> int:
    return 0
