"""Seconds and bytes of a module for every candidate layout of it, for the mean row: computed once, read by planners."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float, Int, Shaped

from sharding.costs.cost_model import CostModel
from sharding.costs.memory import train_state_bytes
from sharding.planners.tables.fixed_ranks import FixedRanks
from sharding.planners.tables.row_bytes import RowBytes
from sharding.specs.layers.layer import RecomputePolicy
from sharding.specs.layers.module_spec import ModuleSpec

_NO_ROWS = 1e-9  # of a module to which the data brings nothing


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ModuleTable:
    """One row for each candidate layout of a module.

    Dimensions: o candidates, k microbatch sizes (rows per replica), g distinct stages of a candidate. Between two sizes
    seconds are interpolated: kernels are linear in the load but for the launch, and but for small loads.

    Attributes:
        module: The module.
        costs: The cost model.
        rows: Rows' worth of load of a replica's microbatch, ascending from 0.
        tp: Tensor-parallel size of each candidate.
        pp: Number of pipeline ranks of each candidate.
        chunks: Virtual stages per pipeline rank of each candidate.
        recompute: Recomputation policy of each candidate.
        layers: How many layers each virtual stage of a candidate owns.
        slowest_stage: Seconds of the slowest stage for a microbatch, forward and backward.
        fill: Pipeline fill latency: seconds of a microbatch through all stages, forward and backward, over the chunks.
        parameters: Elements of parameters on a device of a stage, without experts'.
        trained: Elements of `parameters` that train.
        experts: Elements of experts' parameters on a device of a stage.
        trained_experts: Elements of `experts` that train.
        in_flight: Microbatches that a stage holds where no stage is downstream of the module; each downstream stage
            adds one, or two if the module has chunks.
        saved: Bytes per row of each microbatch in flight.
        saved_by_one_chunk: Bytes, per row of a microbatch, that the leading and trailing layers, which only one chunk
            of a rank has, save for all microbatches in flight in that chunk.
        workspace: Bytes per row that are there while a layer runs.
        fixed_ranks: Context-parallel and expert ranks of all candidates.
    """

    module: ModuleSpec
    costs: CostModel
    rows: Float[np.ndarray, " k"]
    tp: Int[np.ndarray, " o"]
    pp: Int[np.ndarray, " o"]
    chunks: Int[np.ndarray, " o"]
    recompute: tuple[RecomputePolicy, ...]
    layers: tuple[tuple[int, ...], ...]
    slowest_stage: Float[np.ndarray, "o k"]
    fill: Float[np.ndarray, "o k"]
    parameters: Float[np.ndarray, "o g"]
    trained: Float[np.ndarray, "o g"]
    experts: Float[np.ndarray, "o g"]
    trained_experts: Float[np.ndarray, "o g"]
    in_flight: Float[np.ndarray, "o g"]
    saved: RowBytes
    saved_by_one_chunk: RowBytes
    workspace: RowBytes
    fixed_ranks: FixedRanks

    @functools.cached_property
    def tensor_sizes(self) -> tuple[int, ...]:
        """The tensor-parallel sizes of its candidates, ascending."""
        return tuple(np.unique(self.tp).tolist())

    def least_device_seconds(self, tp: int, rows: float) -> float:
        """A lower bound of the device-seconds of `rows` rows: on one stage, with the cheapest recomputation policy."""
        return float(np.interp(rows, self.rows, self._one_stage_seconds[tp]))

    @functools.cached_property
    def _one_stage_seconds(self) -> dict[int, Float[np.ndarray, " k"]]:
        """By tp, the device-seconds of the rows on one stage."""
        seconds = self.fixed_ranks.cp * self.tp[:, None] * self.fill * self.chunks[:, None]
        return {tp: seconds[(self.pp == 1) & (self.tp == tp)].min(axis=0) for tp in self.tensor_sizes}

    def stage_seconds(
        self, candidates: Int[np.ndarray, " n"], rows: Float[np.ndarray, " n"]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Seconds of the slowest stage, and of the pipeline fill, of candidates whose replicas have so many rows."""
        upper = np.clip(np.searchsorted(self.rows, rows), 1, len(self.rows) - 1)
        share = (rows - self.rows[upper - 1]) / (self.rows[upper] - self.rows[upper - 1])
        slowest, fill = (
            figure[candidates, upper - 1] * (1 - share) + figure[candidates, upper] * share
            for figure in (self.slowest_stage, self.fill)
        )
        return slowest, fill

    @functools.cached_property
    def replica_devices(self) -> Int[np.ndarray, " o"]:
        """Devices of one replica of each candidate, all stages together."""
        return self.tp * self.fixed_ranks.cp * self.pp

    def min_devices(self, tp: int, memory: float) -> float:
        """The fewest devices that hold weights and optimizer state with `tp` tensor ranks, however many data ranks."""
        candidate = np.flatnonzero((self.tp == tp) & (self.pp == 1))[:1]
        state = float(self._state_bytes(candidate, np.array([np.inf])).max())
        return tp * self.fixed_ranks.cp * max(1.0, state / memory) * self.fixed_ranks.ep

    def max_downstream_stages(
        self,
        candidates: Int[np.ndarray, " n"],
        rows: Shaped[np.ndarray, " n"],
        dp: Int[np.ndarray, " n"],
        memory: float,
        microbatches: Int[np.ndarray, " n"],
        extra: Shaped[np.ndarray, " n"] | int = 0,
    ) -> Float[np.ndarray, " n"]:
        """How many stages the memory allows downstream of the module; negative where it never fits.

        Args:
            candidates: Numbers of candidates.
            rows: Rows of a replica's microbatch.
            dp: Number of replicas.
            memory: Bytes of a device.
            microbatches: Microbatches of a step; more are never in flight.
            extra: Microbatches that each rank holds beyond the schedule's limits, each in one of its chunks.
        """
        in_flight = self._in_flight_that_fit(candidates, rows, dp, memory)
        chunks = self.chunks[candidates][:, None]
        needed = self.in_flight[candidates] + np.broadcast_to(extra, len(candidates))[:, None]
        stages = np.floor((in_flight - needed) / np.where(chunks > 1, 2, 1) + 1e-9)
        return np.where(in_flight >= microbatches[:, None] * chunks, np.inf, stages).min(axis=1)

    def spare_in_flight(self, candidate: int, rows: float, dp: int, memory: float, downstream_stages: float) -> float:
        """How many microbatches beyond the schedule's limits the memory allows; negative where it is too small.

        Takes the arguments of `peak_bytes`, for one candidate, and the bytes of a device.
        """
        one = np.array([candidate])
        needed = self.in_flight[one] + downstream_stages * (2 if self.chunks[candidate] > 1 else 1)
        fits = self._in_flight_that_fit(one, np.array([rows]), np.array([dp]), memory)
        return float(np.floor(fits - needed + 1e-9).min())

    def _in_flight_that_fit(
        self,
        candidates: Int[np.ndarray, " n"],
        rows: Shaped[np.ndarray, " n"],
        dp: Int[np.ndarray, " n"],
        memory: float,
    ) -> Float[np.ndarray, "n g"]:
        """How many microbatches each stage can hold in `memory` bytes; negative where its state alone is too large."""
        room = memory - self.static_bytes(candidates, rows, dp)
        return self.saved.select(candidates).max_rows(room) / np.maximum(rows, _NO_ROWS)[:, None]

    def downstream_stages_of_sources(
        self, candidates: Int[np.ndarray, " n"], downstream_stages: Float[np.ndarray, " n"] | float
    ) -> Float[np.ndarray, " n"]:
        """In-flight microbatches that this module and the stages after it add to each module that feeds it.

        Without chunks every stage of this module, and every stage downstream of it, adds one microbatch. With chunks
        the modules that feed it hold as many as a rank does until its first backward (`interleaved_in_flight`).
        """
        pp, has_chunks = self.pp[candidates], self.chunks[candidates] > 1
        return np.where(has_chunks, 2 * pp + 2 * downstream_stages - 1, pp + downstream_stages).astype(float)

    def peak_bytes(
        self,
        candidates: Int[np.ndarray, " n"],
        rows: Shaped[np.ndarray, " n"],
        dp: Int[np.ndarray, " n"],
        downstream_stages: Float[np.ndarray, " n"],
        microbatches: Int[np.ndarray, " n"],
    ) -> Float[np.ndarray, " n"]:
        """Bytes on a device of the fullest stage.

        Args:
            candidates: Numbers of candidates.
            rows: Rows of a replica's microbatch.
            dp: Number of replicas.
            downstream_stages: Stages downstream of the module.
            microbatches: Microbatches of a step.
        """
        chunks = self.chunks[candidates][:, None]
        in_flight = self.in_flight[candidates] + downstream_stages[:, None] * np.where(chunks > 1, 2, 1)
        in_flight = np.minimum(in_flight, microbatches[:, None] * chunks)
        saved = self.saved.select(candidates).upper_bound(in_flight * rows[:, None])
        return (self.static_bytes(candidates, rows, dp) + saved).max(axis=1)

    def static_bytes(
        self, candidates: Int[np.ndarray, " n"], rows: Shaped[np.ndarray, " n"], dp: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, "n g"]:
        """Bytes that a device of each stage takes at all times."""
        workspace = self.workspace.select(candidates).upper_bound(rows.astype(float))
        by_one_chunk = self.saved_by_one_chunk.select(candidates).upper_bound(rows[:, None].astype(float))
        return self._state_bytes(candidates, dp) + workspace[:, None] + by_one_chunk

    def _state_bytes(self, candidates: Int[np.ndarray, " n"], dp: Shaped[np.ndarray, " n"]) -> Float[np.ndarray, "n g"]:
        replicas = dp[:, None] * self.fixed_ranks.cp
        state = train_state_bytes(self.parameters[candidates], self.trained[candidates], replicas, self.costs)
        if not self.module.expert_count:
            return np.asarray(state)
        expert_replicas = replicas / self.fixed_ranks.ep
        experts = train_state_bytes(
            self.experts[candidates], self.trained_experts[candidates], expert_replicas, self.costs
        )
        return np.asarray(state + experts)
