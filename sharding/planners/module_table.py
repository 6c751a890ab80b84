"""Seconds and bytes of a module for every candidate layout of it, for the mean row: computed once, read by planners."""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from sharding.costs.cost_model import CostModel
from sharding.costs.memory import train_state_bytes
from sharding.planners.fixed_ranks import SINGLE_RANKS, FixedRanks
from sharding.planners.layer_groups import LayerGroupCosts, LayerGroups
from sharding.planners.partition import balanced_layers
from sharding.plans.trained_parts import RequiredGradients
from sharding.specs.layer import Loads, RecomputePolicy
from sharding.specs.module_spec import ModuleSpec

DEVIATIONS = 4  # of a microbatch's bytes above the mean; simulating a plan checks what its devices really hold


class RowBytes(NamedTuple):
    """Bytes that a row saves for its backward.

    Attributes:
        mean: The mean over rows.
        deviation: The standard deviation over rows.
        maximum: The maximum over rows.
    """

    mean: Float[np.ndarray, "..."]
    deviation: Float[np.ndarray, "..."]
    maximum: Float[np.ndarray, "..."]

    def select(self, candidates: Int[np.ndarray, " n"]) -> "RowBytes":
        """The bytes of some candidates."""
        return RowBytes(*(array[candidates] for array in self))

    def upper_bound(self, rows: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Bytes that `rows` rows hardly ever exceed: DEVIATIONS standard deviations above their mean."""
        return np.minimum(self.mean * rows + DEVIATIONS * self.deviation * np.sqrt(rows), self.maximum * rows)

    def max_rows(self, room: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """How many rows fit into `room` bytes, the inverse of `upper_bound`; negative where `room` is."""
        nonnegative = np.maximum(room, 0.0)
        deviation = DEVIATIONS * self.deviation
        with np.errstate(divide="ignore", invalid="ignore"):
            root = (np.sqrt(deviation**2 + 4 * self.mean * nonnegative) - deviation) / (2 * self.mean)
            rows = np.where(self.maximum > 0, np.maximum(root**2, nonnegative / self.maximum), np.inf)
        return np.where(room >= 0, rows, -1.0)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ModuleTable:
    """One row for each candidate layout of a module.

    Dimensions: o candidates, k microbatch sizes (rows per replica), g distinct stages of a candidate.

    Attributes:
        module: The module.
        costs: The cost model.
        rows: Numbers of rows of a replica's microbatch.
        tp: Tensor-parallel size of each candidate.
        pp: Number of pipeline ranks of each candidate.
        chunks: Virtual stages per pipeline rank of each candidate.
        recompute: Recomputation policy of each candidate.
        layers: How many layers each virtual stage of a candidate owns.
        slowest_stage: Seconds of the slowest stage for a microbatch, forward and backward.
        fill: Pipeline fill latency: seconds of a microbatch through all stages, forward and backward, over the chunks.
        parameters: Elements of parameters on a device of a stage, without experts'.
        trained: Those of them that train.
        experts: Elements of experts' parameters on a device of a stage.
        trained_experts: Those of them that train.
        in_flight: Microbatches that a stage holds where no stage is downstream of the module; each downstream stage
            adds one, or two if the module has chunks.
        saved: Bytes per row of each microbatch in flight.
        saved_by_one_chunk: Bytes, per row of a microbatch, that the leading and trailing layers, which only one chunk
            of a rank has, save for all microbatches in flight in that chunk.
        workspace: Bytes per row of a layer that is recomputed.
        fixed_ranks: Context-parallel and expert ranks of all candidates.
    """

    module: ModuleSpec
    costs: CostModel
    rows: Int[np.ndarray, " k"]
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
    def device_seconds_per_row(self) -> dict[int, Float[np.ndarray, " k"]]:
        """By tp, a lower bound of the device-seconds of a row: on one stage, with the cheapest recomputation policy."""
        seconds = self.fixed_ranks.cp * self.fill * self.chunks[:, None] / self.rows
        one_stage = self.pp == 1
        return {int(tp): tp * seconds[one_stage & (self.tp == tp)].min(axis=0) for tp in np.unique(self.tp)}

    @functools.cached_property
    def replica_devices(self) -> Int[np.ndarray, " o"]:
        """Devices of one replica of each candidate, all stages together."""
        return self.tp * self.fixed_ranks.cp * self.pp

    def replica_options(self, dp: int) -> tuple[Int[np.ndarray, " c"], Int[np.ndarray, " c"]]:
        """With a backbone of `dp` replicas: the possible columns of `rows`, and the number of replicas of each."""
        columns = np.flatnonzero(dp % (self.rows * self.fixed_ranks.ep) == 0)
        return columns, dp // self.rows[columns]

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
    ) -> Float[np.ndarray, " n"]:
        """How many stages the memory allows downstream of the module; negative where it never fits.

        Args:
            candidates: Numbers of candidates.
            rows: Rows of a replica's microbatch.
            dp: Number of replicas.
            memory: Bytes of a device.
            microbatches: Microbatches of a step; more are never in flight.
        """
        in_flight = self._in_flight_that_fit(candidates, rows, dp, memory)
        chunks = self.chunks[candidates][:, None]
        stages = np.floor((in_flight - self.in_flight[candidates]) / np.where(chunks > 1, 2, 1) + 1e-9)
        return np.where(in_flight >= microbatches[:, None] * chunks, np.inf, stages).min(axis=1)

    def spare_in_flight(self, candidate: int, rows: int, dp: int, memory: float, downstream_stages: float) -> float:
        """How many microbatches beyond the schedule's limits the memory allows; negative where it is too small.

        The arguments are those of `peak_bytes`, for one candidate, and the bytes of a device.
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
        return self.saved.select(candidates).max_rows(room) / rows[:, None]

    def downstream_stages_of_sources(
        self, candidates: Int[np.ndarray, " n"], downstream_stages: int
    ) -> Float[np.ndarray, " n"]:
        """Stages downstream of the modules that feed this one, as in-flight microbatches that they add to those.

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


class _Stage(NamedTuple):
    """One stage of a candidate; triples count (leading layers, layers of the stack, trailing layers).

    Attributes:
        on_device: Layers on its device, in all chunks.
        per_microbatch: Layers whose activations every microbatch in flight saves.
        saved_by_one_chunk: Leading and trailing layers, which only one chunk of the rank has, times the microbatches in
            flight in that chunk.
        in_flight: Microbatches in flight where no stage is downstream of the module.
    """

    on_device: tuple[int, int, int]
    per_microbatch: tuple[int, int, int]
    saved_by_one_chunk: tuple[int, int, int]
    in_flight: int


class _Candidate(NamedTuple):
    """One layout of a module; `stages` are its distinct ones."""

    tp: int
    recompute: RecomputePolicy
    pp: int
    chunks: int
    layers: tuple[int, ...]
    stages: list[_Stage]
    groups: tuple[LayerGroupCosts, ...]


def module_table(
    module: ModuleSpec,
    required: RequiredGradients,
    costs: CostModel,
    loads: Loads,
    rows: Int[np.ndarray, " k"],
    *,
    recompute: tuple[RecomputePolicy, ...],
    chunks: tuple[int, ...],
    tensor_sizes: tuple[int, ...],
    max_stages: int,
    fixed_ranks: FixedRanks = SINGLE_RANKS,
) -> ModuleTable:
    """Tables every candidate layout of a module.

    Args:
        module: The module.
        required: Which gradients its layers compute.
        costs: The cost model.
        loads: Loads of representative rows.
        rows: Numbers of rows of a replica's microbatch.
        recompute: Recomputation policies to choose from.
        chunks: Numbers of virtual stages per pipeline rank to choose from.
        tensor_sizes: Tensor-parallel sizes to choose from; those that do not divide the module are left out.
        max_stages: The most stages; a module that is not divisible has one in any case.
        fixed_ranks: Context-parallel and expert ranks.
    """
    sizes = [tp for tp in tensor_sizes if module.supports_tp(tp)]
    depth = min(max_stages, module.layer_count) if module.divisible else 1
    layer_groups = LayerGroups(module, required, costs, loads, rows, fixed_ranks)
    candidates = []
    for tp, policy in itertools.product(sizes, recompute):
        groups = layer_groups.costs(tp, policy)
        leading, layer, trailing = (float(group.seconds[0]) for group in groups)
        for pp, count in itertools.product(range(1, depth + 1), chunks):
            if count == 1 or 1 < pp <= depth // count:
                layers = balanced_layers(leading, layer, trailing, module.layer_count, pp * count)
                candidates.append(_Candidate(tp, policy, pp, count, layers, _distinct_stages(layers, pp), groups))
    return _tabulate(module, costs, rows, candidates, fixed_ranks)


def _distinct_stages(layers: tuple[int, ...], pp: int) -> list[_Stage]:
    """The distinct stages of a module; of equal ones the first, which holds the most microbatches.

    Of a stage with chunks, every chunk of a microbatch counts as one microbatch in flight (`interleaved_in_flight`),
    with the layers of the largest chunk; what only one chunk has is counted for the microbatches in that chunk.
    """
    stages: dict[tuple[tuple[int, int, int], int], _Stage] = {}
    for rank in range(pp):
        chunks = layers[rank::pp]
        first, last = int(rank == 0), int(rank == pp - 1)
        on_device = (first, sum(chunks), last)
        if len(chunks) == 1:
            stage = _Stage(on_device, on_device, (0, 0, 0), pp - rank)
        else:
            saved_by_one_chunk = (2 * pp * first, 0, 2 * last)
            stage = _Stage(on_device, (0, max(chunks), 0), saved_by_one_chunk, len(layers) + pp - 2 * rank - 1)
        stages.setdefault((on_device, max(chunks)), stage)
    return list(stages.values())


def _tabulate(
    module: ModuleSpec,
    costs: CostModel,
    rows: Int[np.ndarray, " k"],
    candidates: list[_Candidate],
    fixed_ranks: FixedRanks,
) -> ModuleTable:
    """Stacks the candidates; one with fewer distinct stages than another repeats its last."""
    width = max(len(candidate.stages) for candidate in candidates)
    stages = [candidate.stages + candidate.stages[-1:] * (width - len(candidate.stages)) for candidate in candidates]
    on_device = np.array([[stage.on_device for stage in row] for row in stages], float)  # [o, g, 3]
    per_microbatch = np.array([[stage.per_microbatch for stage in row] for row in stages], float)
    saved_by_one_chunk = np.array([[stage.saved_by_one_chunk for stage in row] for row in stages], float)
    seconds = np.array([[group.seconds for group in candidate.groups] for candidate in candidates])  # [o, 3, k]
    group_parameters = np.array(
        [[group.parameters for group in candidate.groups] for candidate in candidates]
    )  # [o, 3, 4]
    group_saved = np.array([[group.saved for group in candidate.groups] for candidate in candidates])  # [o, 3, 3]
    recomputed = np.array([[group.recomputed for group in candidate.groups] for candidate in candidates])  # [o, 3, 3]
    chunks = np.array([candidate.chunks for candidate in candidates])
    parameters, trained, experts, trained_experts = np.moveaxis(on_device @ group_parameters, 2, 0)
    whole_module = seconds[:, 0] + module.layer_count * seconds[:, 1] + seconds[:, 2]
    return ModuleTable(
        module=module,
        costs=costs,
        rows=rows,
        tp=np.array([candidate.tp for candidate in candidates]),
        pp=np.array([candidate.pp for candidate in candidates]),
        chunks=chunks,
        recompute=tuple(candidate.recompute for candidate in candidates),
        layers=tuple(candidate.layers for candidate in candidates),
        slowest_stage=(on_device @ seconds).max(axis=1),
        fill=whole_module / chunks[:, None],
        parameters=parameters,
        trained=trained,
        experts=experts,
        trained_experts=trained_experts,
        in_flight=np.array([[stage.in_flight for stage in row] for row in stages], float),
        saved=RowBytes(*np.moveaxis(per_microbatch @ group_saved, 2, 0)),
        saved_by_one_chunk=RowBytes(*np.moveaxis(saved_by_one_chunk @ group_saved, 2, 0)),
        workspace=RowBytes(*np.moveaxis(recomputed.max(axis=1), 1, 0)),
        fixed_ranks=fixed_ranks,
    )
