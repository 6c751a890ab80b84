"""DistTrain's orchestration as convex problems (arXiv 2408.04275, equations 1 and 2), solved for all sizes at once.

    minimise    constant_fill + sum_i fill_i / x_i + steady_microbatches * max_i device_seconds_i / x_i
    subject to  sum_i x_i <= devices,  x_i >= min_devices_i,  max_i device_seconds_i / x_i >= min_stage_seconds

For a given time s of the slowest stage, x_i >= max(min_devices_i, device_seconds_i / s), and the remaining devices are
worth most where they make the derivatives equal: x_i = max(lower_i, r * sqrt(fill_i)). The least cost for a given s is
convex in s, so a one-dimensional search finds the optimum.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from sharding.planners.problem import PlanningProblem
from sharding.planners.tables.module_table import ModuleTable

_GOLDEN = (5**0.5 - 1) / 2
_STEPS = 36


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RelaxedProblems:
    """One convex problem per combination of sizes c, over modules i.

    Attributes:
        device_seconds: Device-seconds of a microbatch, forward and backward.
        fill: Seconds times devices of the share of the pipeline fill that more devices shorten.
        constant_fill: Seconds of the share of the pipeline fill that they do not shorten.
        steady_microbatches: Microbatches after the first.
        min_devices: Devices that a module needs.
        min_stage_seconds: Seconds that some stage takes in any case.
    """

    device_seconds: Float[np.ndarray, "c i"]
    fill: Float[np.ndarray, "c i"]
    constant_fill: Float[np.ndarray, " c"]
    steady_microbatches: Float[np.ndarray, " c"]
    min_devices: Float[np.ndarray, "c i"]
    min_stage_seconds: Float[np.ndarray, " c"]

    def solve(self, devices: int | float) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, "c i"]]:
        """Seconds and devices of each optimum; seconds are infinite where the modules need more than `devices`."""
        fits = self.min_devices.sum(axis=1) <= devices
        low = np.log(self._least_stage_seconds(devices, fits))
        high = np.maximum(low, np.log((self.device_seconds / self.min_devices).max(axis=1)))
        inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
        values = [self._optimum_at(np.exp(point), devices)[0] for point in inner]
        for _ in range(_STEPS):  # golden-section search in log(s)
            left = values[0] <= values[1]
            low, high = np.where(left, low, inner[0]), np.where(left, inner[1], high)
            new = np.where(left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
            value, _ = self._optimum_at(np.exp(new), devices)
            inner = [np.where(left, new, inner[1]), np.where(left, inner[0], new)]
            values = [np.where(left, value, values[1]), np.where(left, values[0], value)]
        # With few microbatches, or none after the first, the optimum may be at an end of the interval.
        best, best_devices = np.full(len(fits), np.inf), np.zeros_like(self.device_seconds)
        for point in (low, high, *inner):
            value, split = self._optimum_at(np.exp(point), devices)
            better = fits & (value < best)
            best = np.where(better, value, best)
            best_devices = np.where(better[:, None], split, best_devices)
        return best, best_devices

    def _least_stage_seconds(self, devices: int | float, fits: Bool[np.ndarray, " c"]) -> Float[np.ndarray, " c"]:
        """The least time of the slowest stage: each module at its minimum of devices, or as slow as the others."""
        is_free = np.ones(self.device_seconds.shape, bool)
        seconds = np.ones(len(self.device_seconds))
        for _ in range(self.device_seconds.shape[1]):
            remaining = devices - np.where(is_free, 0.0, self.min_devices).sum(axis=1)
            total = np.where(is_free, self.device_seconds, 0.0).sum(axis=1)
            has_both = (total > 0) & (remaining > 0) & fits
            seconds = np.where(has_both, total / np.where(remaining > 0, remaining, 1.0), seconds)
            is_free = is_free & (self.device_seconds > self.min_devices * seconds[:, None])
        return np.maximum(np.maximum(seconds * (1 + 1e-12), self.min_stage_seconds), 1e-30)

    def _optimum_at(
        self, slowest_stage: Float[np.ndarray, " c"], devices: int | float
    ) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, "c i"]]:
        """Seconds and devices of the optimum in which no stage takes longer than `slowest_stage`."""
        lower = np.maximum(self.min_devices, self.device_seconds / slowest_stage[:, None])
        weights = np.sqrt(self.fill)
        is_free = self.fill > 0
        split = lower
        for _ in range(self.device_seconds.shape[1]):
            remaining = devices - np.where(is_free, 0.0, lower).sum(axis=1)
            total = np.where(is_free, weights, 0.0).sum(axis=1)
            per_weight = remaining / np.where(total > 0, total, 1.0)
            split = np.where(is_free, weights * per_weight[:, None], lower)
            is_free = is_free & (split > lower)
        split = np.maximum(split, lower)
        fill = self.constant_fill + (self.fill / split).sum(axis=1)
        return fill + self.steady_microbatches * slowest_stage, split


@dataclasses.dataclass(frozen=True, eq=False)
class SizeGrid:
    """All combinations of sizes that DistTrain's Algorithm 1 goes through.

    Attributes:
        dp: Data-parallel size of the backbone.
        tp: Tensor-parallel sizes, in the order of the modules.
        chunks: Virtual stages per pipeline rank of the backbone.
    """

    dp: Int[np.ndarray, " c"]
    tp: Int[np.ndarray, "c i"]
    chunks: Int[np.ndarray, " c"]


@dataclasses.dataclass(frozen=True, eq=False)
class RelaxedOptima(SizeGrid):
    """The relaxed optimum of every combination of sizes.

    Attributes:
        seconds: Seconds of a step; infinite where the modules need more devices than there are.
        devices: Devices of each module.
    """

    seconds: Float[np.ndarray, " c"]
    devices: Float[np.ndarray, "c i"]


def solve_relaxations(problem: PlanningProblem, chunks: int | None = None) -> RelaxedOptima:
    """The relaxed optimum of every combination of sizes, which no integer layout of these sizes beats.

    Args:
        problem: The problem.
        chunks: Virtual stages per pipeline rank of the backbone; by default, each number that the problem allows.
    """
    sizes, problems = relaxed_problems(problem, chunks)
    return RelaxedOptima(sizes.dp, sizes.tp, sizes.chunks, *problems.solve(problem.devices))


def relaxed_problems(problem: PlanningProblem, chunks: int | None = None) -> tuple[SizeGrid, RelaxedProblems]:
    """Returns all combinations of sizes, and their convex problems; takes the arguments of `solve_relaxations`."""
    names = problem.graph.names
    possible = np.unique(problem.module_tables[problem.graph.backbone.name].chunks)
    axes = [np.arange(len(problem.row_divisors)), possible[(possible == chunks) | (chunks is None)]]
    axes += [np.array(problem.module_tables[name].tensor_sizes) for name in names]
    index, numbers, *tps = (grid.ravel() for grid in np.meshgrid(*axes, indexing="ij"))
    dp = problem.row_divisors[index]
    device_seconds, min_devices, fill = (np.zeros((len(dp), len(names))) for _ in range(3))
    constant_fill, min_stage_seconds = np.zeros(len(dp)), np.zeros(len(dp))
    for column, (name, tp) in enumerate(zip(names, tps, strict=True)):
        table = problem.module_tables[name]
        if table.module.is_backbone:
            seconds, fewest, most = (figure[index, tp, numbers] for figure in _backbone_figures(problem, table, chunks))
            ranks = dp * tp * table.fixed_ranks.cp
            device_seconds[:, column], min_devices[:, column] = ranks * seconds, ranks * fewest
            constant_fill, min_stage_seconds = seconds / numbers, seconds / most
            continue
        for size in table.tensor_sizes:
            here = tp == size
            seconds = np.array(
                [problem.least_device_seconds(name, int(replicas), size) for replicas in problem.row_divisors]
            )
            device_seconds[here, column] = fill[here, column] = seconds[index[here]]
            min_devices[here, column] = table.min_devices(size, problem.cluster.usable_memory)
    return SizeGrid(dp, np.stack(tps, axis=1), numbers), RelaxedProblems(
        device_seconds=device_seconds,
        fill=fill,
        constant_fill=constant_fill,
        steady_microbatches=problem.rows / dp - 1,
        min_devices=min_devices,
        min_stage_seconds=min_stage_seconds,
    )


def _backbone_figures(
    problem: PlanningProblem, table: ModuleTable, chunks: int | None
) -> tuple[Float[np.ndarray, "d t v"], ...]:
    """By dp, tp and chunks, over the candidates that fit: least seconds of a row, fewest stages, most stages.

    Where no candidate fits, the fewest stages are more than there are devices.
    """
    dp, candidates = problem.row_divisors, np.flatnonzero((table.chunks == chunks) | (chunks is None))
    index, candidate = (grid.ravel() for grid in np.meshgrid(np.arange(len(dp)), candidates, indexing="ij"))
    max_downstream_stages = table.max_downstream_stages(
        candidate, np.ones(len(index)), dp[index], problem.cluster.usable_memory, problem.rows // dp[index]
    )
    fits = (max_downstream_stages >= int(problem.has_generators)) & (dp[index] % table.fixed_ranks.ep == 0)
    index, candidate = index[fits], candidate[fits]
    shape = (len(dp), int(table.tp.max()) + 1, int(table.chunks.max()) + 1)
    seconds, fewest, most = np.full(shape, np.inf), np.full(shape, problem.devices + 1.0), np.ones(shape)
    cell = (index, table.tp[candidate], table.chunks[candidate])
    np.minimum.at(seconds, cell, table.fill[candidate, -1] * table.chunks[candidate])
    np.minimum.at(fewest, cell, table.pp[candidate])
    np.maximum.at(most, cell, table.pp[candidate])
    return np.where(np.isfinite(seconds), seconds, 1.0), fewest, most
