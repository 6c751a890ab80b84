"""DistTrain's orchestration as a convex problem (arXiv 2408.04275, equations 1 and 2), many candidates at once.

    minimise    constant + sum_i warm_i / x_i + steady * max_i work_i / x_i
    subject to  sum_i x_i <= devices,  x_i >= least_i,  max_i work_i / x_i >= fastest

For a given time s of the slowest stage, x_i >= max(least_i, work_i / s), and what is left of the devices is worth most
where it equalises the derivatives: x_i = max(lower_i, r * sqrt(warm_i)). The least cost for a given s is convex in s,
so a one-dimensional search ends the matter.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

_GOLDEN = (5**0.5 - 1) / 2
_STEPS = 36


@dataclasses.dataclass(frozen=True, eq=False)
class RelaxedProblems:
    """Candidates c over modules i.

    Attributes:
        work: Device-seconds of a microbatch, forward and backward.
        warm: Seconds times devices of the warm-up that more devices shorten.
        constant: Seconds of the warm-up that they do not.
        steady: Microbatches after the first.
        least: Devices that a module needs.
        fastest: Seconds that some stage takes in any case.
    """

    device_seconds: Float[np.ndarray, "c i"]
    fill: Float[np.ndarray, "c i"]
    constant_fill: Float[np.ndarray, " c"]
    steady_microbatches: Float[np.ndarray, " c"]
    min_devices: Float[np.ndarray, "c i"]
    min_stage_seconds: Float[np.ndarray, " c"]

    def solve(self, devices: int | float) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, "c i"]]:
        """Seconds and devices of each candidate's optimum; infinite where the modules need more than there are."""
        fits = self.min_devices.sum(axis=1) <= devices
        low = np.log(self._fastest(devices, fits))
        high = np.maximum(low, np.log((self.device_seconds / self.min_devices).max(axis=1)))
        inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
        values = [self._at(np.exp(point), devices)[0] for point in inner]
        for _ in range(_STEPS):
            left = values[0] <= values[1]
            low, high = np.where(left, low, inner[0]), np.where(left, inner[1], high)
            fresh = np.where(left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
            value, _ = self._at(np.exp(fresh), devices)
            inner = [np.where(left, fresh, inner[1]), np.where(left, inner[0], fresh)]
            values = [np.where(left, value, values[1]), np.where(left, values[0], value)]
        # With few microbatches, or none after the first, the optimum may lie at an end.
        best, shares = np.full(len(fits), np.inf), np.zeros_like(self.device_seconds)
        for point in (low, high, *inner):
            value, split = self._at(np.exp(point), devices)
            better = fits & (value < best)
            best, shares = np.where(better, value, best), np.where(better[:, None], split, shares)
        return best, shares

    def _fastest(self, devices: int | float, fits: np.ndarray) -> Float[np.ndarray, " c"]:
        """The least time of the slowest stage: all devices given out, each module at its least or as slow as others."""
        free = np.ones(self.device_seconds.shape, bool)
        seconds = np.ones(len(self.device_seconds))
        for _ in range(self.device_seconds.shape[1]):
            rest = devices - np.where(free, 0.0, self.min_devices).sum(axis=1)
            asked = np.where(free, self.device_seconds, 0.0).sum(axis=1)
            seconds = np.where((asked > 0) & (rest > 0) & fits, asked / np.where(rest > 0, rest, 1.0), seconds)
            free = free & (self.device_seconds > self.min_devices * seconds[:, None])
        return np.maximum(np.maximum(seconds * (1 + 1e-12), self.min_stage_seconds), 1e-30)

    def _at(
        self, slowest: Float[np.ndarray, " c"], devices: int | float
    ) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, "c i"]]:
        """The optimum where no stage takes longer than `slowest`."""
        lower = np.maximum(self.min_devices, self.device_seconds / slowest[:, None])
        wish = np.sqrt(self.fill)
        free = self.fill > 0
        shares = lower
        for _ in range(self.device_seconds.shape[1]):
            rest = devices - np.where(free, 0.0, lower).sum(axis=1)
            wished = np.where(free, wish, 0.0).sum(axis=1)
            each = rest / np.where(wished > 0, wished, 1.0)
            shares = np.where(free, wish * each[:, None], lower)
            free = free & (shares > lower)
        shares = np.maximum(shares, lower)
        return self.constant_fill + (self.fill / shares).sum(axis=1) + self.steady_microbatches * slowest, shares
