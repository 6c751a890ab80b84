"""The recomputation of each layer of a pipeline rank that takes the fewest seconds within the device's memory.

A multiple-choice knapsack over the rank's layers: each has the seconds and the bytes of one of the policies, the bytes
times the microbatches that its stage holds. It is solved exactly, over groups of equal layers (`option_fronts`).
Recomputing takes workspace, as much as the largest recomputed layer: all its possible values are tried. Of a rank with
chunks, each chunk counts the most microbatches that it ever holds, and the workspace of the largest layer of any.
"""

import collections
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sharding.planners.stages.exact_partition import StageTable, sums_between
from sharding.planners.stages.layer_chain import LayerChain
from sharding.planners.stages.option_fronts import GroupFronts, OptionFront, best_within


class HeldLayers(NamedTuple):
    """The layers of a virtual stage, from `first` up to `last`, which is excluded, and the microbatches it holds."""

    first: int
    last: int
    in_flight: int


class RecomputationChoice(NamedTuple):
    """Policies of some layers.

    Attributes:
        seconds: Forward and backward of a microbatch through all of them.
        policies: Number of each layer's policy in `LayerChain.policies`, in the order of the layers given.
    """

    seconds: float
    policies: Int[np.ndarray, " n"]


class BytesBefore(NamedTuple):
    """Bytes of all layers before each, at every position of a chain.

    Attributes:
        fastest: Bytes under the fastest policies.
        least: Bytes under the policies that hold least; workspace is left out.
    """

    fastest: Float[np.ndarray, " s"]
    least: Float[np.ndarray, " s"]


class RecomputationSolver:
    """Chooses the policies of pipeline ranks of one chain; what equal layers can take is computed once.

    Args:
        chain: The chain.
        memory: Bytes of a device.

    Attributes:
        fastest_before: Seconds of all layers before each under the fastest policies.
    """

    def __init__(self, chain: LayerChain, memory: float) -> None:
        self._chain, self._memory, self._seconds = chain, memory, chain.seconds
        _, self._first_of_kind = np.unique(chain.kinds, return_index=True)
        self._kinds = np.unique(chain.kinds, return_inverse=True)[1].ravel()
        before = np.eye(len(self._first_of_kind), dtype=int)[self._kinds]
        self._kinds_before = np.concatenate([np.zeros((1, before.shape[1]), int), np.cumsum(before, axis=0)])
        self._fronts: dict[tuple, GroupFronts] = {}
        self._least: dict[tuple, float] = {}
        self._sums: dict[int, BytesBefore] = {}
        fastest = self._seconds.argmin(axis=1)
        self._fastest = fastest
        rows = np.arange(len(fastest))
        self.fastest_before = _sums_before(self._seconds[rows, fastest])
        self._gathers_before = _sums_before(chain.gather_seconds)
        self._fastest_workspace = float(chain.workspace[rows, fastest].max())

    def least_seconds(self, *stages: HeldLayers) -> float:
        """Seconds of a rank with these virtual stages under the best policies; infinite if it does not fit."""
        seconds, fastest, least = 0.0, len(stages) * self._fastest_workspace, 0.0
        key = []
        for first, last, in_flight in stages:
            before = self.bytes_before(in_flight)
            fastest += before.fastest[last] - before.fastest[first]
            least += before.least[last] - before.least[first]
            seconds += self.fastest_before[last] - self.fastest_before[first]
            key.append((in_flight, (self._kinds_before[last] - self._kinds_before[first]).tobytes()))
        gathers = self._gathers(stages)
        if fastest <= self._memory:
            return float(seconds) + gathers
        if least > self._memory:
            return np.inf
        if tuple(key) not in self._least:
            best = self._solve(self._groups(stages), len(stages))
            self._least[tuple(key)] = best[0] if best else np.inf
        return self._least[tuple(key)] + gathers

    def fastest_seconds(self, in_flight: int) -> StageTable:
        """Lower bounds of `least_seconds` of any virtual stage that holds so many microbatches.

        They are the seconds of the fastest policies; infinite where even the policies that hold least do not fit.
        """
        fits = sums_between(self.bytes_before(in_flight).least) <= self._memory
        return np.where(fits, self._fastest_between, np.inf)

    @functools.cached_property
    def _fastest_between(self) -> StageTable:
        last_gathers = np.append(0.0, self._gathers_before[:-1])  # what the last layer hands on is not gathered
        return sums_between(self.fastest_before) + (last_gathers - self._gathers_before[:, None])

    def least_bytes(self, *stages: HeldLayers) -> float:
        """Bytes of a rank with these virtual stages under the policies that take the fewest."""
        groups = self._groups(stages)
        kinds = self._first_of_kind[[kind for kind, _ in groups]]
        counts = np.array(list(groups.values()))
        held = np.stack(
            [self._chain.bytes_held(in_flight)[kind] for kind, (_, in_flight) in zip(kinds, groups, strict=True)]
        )
        used = self._chain.workspace[kinds]
        least = np.inf
        for workspace in np.unique(used).tolist():
            layer_bytes = np.where(used <= workspace, held, np.inf).min(axis=1)
            layers = float(counts @ (self._chain.static_bytes[kinds] + layer_bytes))
            least = min(least, layers + len(stages) * workspace)
        return least

    def choose(self, stages: Sequence[HeldLayers]) -> RecomputationChoice | None:
        """The best policies of a rank with these virtual stages; None if it does not fit under any.

        Of equal layers of a stage the ones that save less come first: the backward begins with the last, so that what
        saves more is freed sooner.
        """
        groups = self._groups(stages)
        best = self._solve(groups, len(stages))
        if best is None:
            return None
        seconds, counts = best
        chosen = {}
        for (kind, in_flight), group_counts in zip(groups, counts.reshape(len(groups), -1), strict=True):
            held = self._chain.bytes_held(in_flight)[self._first_of_kind[kind]]
            order = np.argsort(held, kind="stable")
            chosen[kind, in_flight] = iter(np.repeat(order, group_counts[order]).tolist())
        policies = [
            next(chosen[int(self._kinds[layer]), in_flight])
            for first, last, in_flight in stages
            for layer in range(first, last)
        ]
        return RecomputationChoice(seconds + self._gathers(stages), np.array(policies))

    def _gathers(self, stages: Sequence[HeldLayers]) -> float:
        """Seconds of gathering rows between the layers of each virtual stage."""
        before = self._gathers_before
        return float(sum(before[last - 1] - before[first] for first, last, _ in stages))

    def _groups(self, stages: Sequence[HeldLayers]) -> dict[tuple[int, int], int]:
        """How many layers there are of each kind that are held for so many microbatches."""
        groups: collections.Counter[tuple[int, int]] = collections.Counter()
        for first, last, in_flight in stages:
            counts = self._kinds_before[last] - self._kinds_before[first]
            for kind in np.flatnonzero(counts).tolist():
                groups[kind, in_flight] += int(counts[kind])
        return dict(groups)

    def _solve(self, groups: dict[tuple[int, int], int], stages: int) -> tuple[float, Int[np.ndarray, " c"]] | None:
        """The fewest seconds of these groups, and how many layers of each have each policy."""
        chain = self._chain
        kinds = self._first_of_kind[[kind for kind, _ in groups]]
        static = float(chain.static_bytes[kinds] @ np.array(list(groups.values())))
        best = None
        for workspace in np.unique(chain.workspace[kinds]).tolist():
            room = self._memory - static - stages * workspace
            if room < 0 or (chain.workspace[kinds] > workspace).all(axis=1).any():
                continue
            fronts = [self._front(*group, count, workspace) for group, count in groups.items()]
            solution = best_within(fronts, room)
            if solution and (best is None or solution[0] < best[0]):
                best = solution
        return best

    def _front(self, kind: int, in_flight: int, layers: int, workspace: float) -> OptionFront:
        chain, first = self._chain, self._first_of_kind[kind]
        allowed = chain.workspace[first] <= workspace
        key = (kind, in_flight, allowed.tobytes())
        if key not in self._fronts:
            held = chain.bytes_held(in_flight)[first]
            self._fronts[key] = GroupFronts(held, self._seconds[first], allowed)
        return self._fronts[key].of_layers(layers)

    def bytes_before(self, in_flight: int) -> BytesBefore:
        """Bytes of all layers before each, held for so many microbatches."""
        if in_flight not in self._sums:
            held = self._chain.bytes_held(in_flight)
            fastest = held[np.arange(len(held)), self._fastest]
            static = self._chain.static_bytes
            self._sums[in_flight] = BytesBefore(_sums_before(static + fastest), _sums_before(static + held.min(axis=1)))
        return self._sums[in_flight]


def _sums_before(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " s"]:
    return np.append(0.0, np.cumsum(values))
