"""What a module takes under every way to cut it, for the mean row: made once, read by every planner."""

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
from sharding.specs.modules import ModuleSpec

DEVIATIONS = 4  # of a microbatch's bytes above the mean; rehearsals check what is really held


class RowBytes(NamedTuple):
    """Bytes that a row leaves for its backward: the mean over rows, their standard deviation, the most."""

    mean: Float[np.ndarray, "..."]
    deviation: Float[np.ndarray, "..."]
    maximum: Float[np.ndarray, "..."]

    def select(self, ways: Int[np.ndarray, " n"]) -> "RowBytes":
        """Of some ways."""
        return RowBytes(*(part[ways] for part in self))

    def upper_bound(self, rows: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """What so many rows hold, hardly ever more."""
        return np.minimum(self.mean * rows + DEVIATIONS * self.deviation * np.sqrt(rows), self.maximum * rows)

    def max_rows(self, room: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """How many rows so many bytes have room for: the inverse of `of`; negative where there is no room at all."""
        room_left = np.maximum(room, 0.0)
        deviation = DEVIATIONS * self.deviation
        with np.errstate(divide="ignore", invalid="ignore"):
            root = (np.sqrt(deviation**2 + 4 * self.mean * room_left) - deviation) / (2 * self.mean)
            rows = np.where(self.maximum > 0, np.maximum(root**2, room_left / self.maximum), np.inf)
        return np.where(room >= 0, rows, -1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleTable:
    """o counts the ways to cut a module, k the numbers of rows in an instance's microbatch, g its distinct stages.

    Attributes:
        module: The module.
        costs: The cost model.
        rows: Rows of an instance's microbatch.
        tp, pp, chunks: Of each way.
        recompute: Of each way.
        layers: Of each way, how many layers each virtual stage owns.
        stage: Seconds of the slowest stage for a microbatch, forward and backward.
        warm: Seconds of a microbatch's way through all stages, forward and backward, over the chunks.
        parameters, trained: Numbers in the parameters of a device of a stage, without experts'.
        experts, trained_experts: The same of experts.
        ahead: Microbatches a stage holds where nothing comes behind the module; one more of each for what does.
        held: Bytes of each of them, by row.
        fixed: Bytes of those that only one chunk of a stage holds.
        workspace: Bytes of a layer that is computed again, by row.
        given: Sequence and expert ranks, which all ways have.
    """

    module: ModuleSpec
    costs: CostModel
    rows: Int[np.ndarray, " k"]
    tp: Int[np.ndarray, " o"]
    pp: Int[np.ndarray, " o"]
    chunks: Int[np.ndarray, " o"]
    recompute: tuple[str, ...]
    layers: tuple[tuple[int, ...], ...]
    slowest_stage: Float[np.ndarray, "o k"]
    fill: Float[np.ndarray, "o k"]
    parameters: Float[np.ndarray, "o g"]
    trained: Float[np.ndarray, "o g"]
    experts: Float[np.ndarray, "o g"]
    trained_experts: Float[np.ndarray, "o g"]
    in_flight: Float[np.ndarray, "o g"]
    saved: RowBytes
    saved_once: RowBytes
    workspace: RowBytes
    fixed_ranks: FixedRanks

    @functools.cached_property
    def device_seconds_per_row(self) -> dict[int, Float[np.ndarray, " k"]]:
        """By tp, the least device-seconds of a row: on one stage, nothing computed again that need not be."""
        seconds = self.fixed_ranks.cp * self.fill * self.chunks[:, None] / self.rows
        whole = self.pp == 1
        return {int(tp): tp * seconds[whole & (self.tp == tp)].min(axis=0) for tp in np.unique(self.tp)}

    @functools.cached_property
    def replica_devices(self) -> Int[np.ndarray, " o"]:
        """Devices of one instance, all stages together, of each way."""
        return self.tp * self.fixed_ranks.cp * self.pp

    def replica_options(self, dp: int) -> tuple[Int[np.ndarray, " c"], Int[np.ndarray, " c"]]:
        """Beside a backbone of `dp` instances: columns of `rows` that can be, and the instances of each."""
        columns = np.flatnonzero(dp % (self.rows * self.fixed_ranks.ep) == 0)
        return columns, dp // self.rows[columns]

    def min_devices(self, tp: int, memory: float) -> float:
        """The fewest devices for its weights and optimizer with so many tensor ranks, ever so many data ranks."""
        way = np.flatnonzero((self.tp == tp) & (self.pp == 1))[:1]
        state = float(self._state(way, np.array([np.inf])).max())
        return tp * self.fixed_ranks.cp * max(1.0, state / memory) * self.fixed_ranks.ep

    def max_stages_behind(
        self,
        ways: Int[np.ndarray, " n"],
        rows: Shaped[np.ndarray, " n"],
        dp: Int[np.ndarray, " n"],
        memory: float,
        most: Int[np.ndarray, " n"],
    ) -> Float[np.ndarray, " n"]:
        """How many stages may come behind the module before its memory is full; negative where it never fits.

        Args:
            ways: Numbers of ways to cut it.
            rows: Of an instance's microbatch.
            dp: Its instances.
            memory: Bytes of a device.
            most: Microbatches of a step: more are never held.
        """
        each = self.saved.select(ways)
        room = memory - self.static_bytes(ways, rows, dp)
        held = each.max_rows(room) / rows[:, None]
        chunks = self.chunks[ways][:, None]
        stages = np.floor((held - self.in_flight[ways]) / np.where(chunks > 1, 2, 1) + 1e-9)
        return np.where(held >= most[:, None] * chunks, np.inf, stages).min(axis=1)

    def stages_behind_sources(self, ways: Int[np.ndarray, " n"], behind: int) -> Float[np.ndarray, " n"]:
        """How many stages come behind what feeds the module, counted as microbatches that it then holds at most."""
        pp, chunked = self.pp[ways], self.chunks[ways] > 1
        return np.where(chunked, 2 * pp + 2 * behind - 1, pp + behind).astype(float)

    def peak_bytes(
        self,
        ways: Int[np.ndarray, " n"],
        rows: Shaped[np.ndarray, " n"],
        dp: Int[np.ndarray, " n"],
        behind: Float[np.ndarray, " n"],
        most: Int[np.ndarray, " n"],
    ) -> Float[np.ndarray, " n"]:
        """Bytes that the fullest stage takes on a device, with so many stages behind the module."""
        chunks = self.chunks[ways][:, None]
        ahead = np.minimum(self.in_flight[ways] + behind[:, None] * np.where(chunks > 1, 2, 1), most[:, None] * chunks)
        held = self.saved.select(ways).upper_bound(ahead * rows[:, None])
        return (self.static_bytes(ways, rows, dp) + held).max(axis=1)

    def static_bytes(
        self, ways: Int[np.ndarray, " n"], rows: Shaped[np.ndarray, " n"], dp: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, "n g"]:
        """Bytes that a device of each stage takes all the time."""
        again = self.workspace.select(ways).upper_bound(rows.astype(float))
        return (
            self._state(ways, dp)
            + again[:, None]
            + self.saved_once.select(ways).upper_bound(rows[:, None].astype(float))
        )

    def _state(self, ways: Int[np.ndarray, " n"], dp: Shaped[np.ndarray, " n"]) -> Float[np.ndarray, "n g"]:
        alike = dp[:, None] * self.fixed_ranks.cp
        state = train_state_bytes(self.parameters[ways], self.trained[ways], alike, self.costs)
        if not self.module.expert_count:
            return state
        return state + train_state_bytes(
            self.experts[ways], self.trained_experts[ways], alike / self.fixed_ranks.ep, self.costs
        )


class _Way(NamedTuple):
    """One way to cut a module; `stages` are its distinct ones, as columns of _stages."""

    tp: int
    recompute: str
    pp: int
    chunks: int
    layers: tuple[int, ...]
    stages: list[tuple[int, ...]]
    pieces: tuple[LayerGroupCosts, ...]


def module_table(
    module: ModuleSpec,
    turns: RequiredGradients,
    costs: CostModel,
    loads: Float[np.ndarray, "n 3"],
    rows: Int[np.ndarray, " k"],
    recompute: tuple[str, ...],
    chunks: tuple[int, ...],
    tensor: tuple[int, ...],
    longest: int,
    given: FixedRanks = SINGLE_RANKS,
) -> ModuleTable:
    """Cuts a module in every way.

    Args:
        module: The module.
        turns: Which gradients its layers need.
        costs: The cost model.
        loads: Of rows that stand for all.
        rows: Rows of an instance's microbatch to table.
        recompute, chunks, tensor: Choices; a tensor-parallel size that does not divide the module is none.
        longest: The most stages; a module that is not divisible has one in any case.
        given: Sequence and expert ranks.
    """
    sizes = [tp for tp in tensor if module.supports_tp(tp)]
    depth = min(longest, module.layer_count) if module.divisible else 1
    pieces = LayerGroups(module, turns, costs, loads, rows, given)
    ways = []
    for tp, choice in itertools.product(sizes, recompute):
        three = pieces.costs(tp, choice)
        before, layer, after = (float(piece.seconds[0]) for piece in three)
        for pp, each in itertools.product(range(1, depth + 1), chunks):
            if each == 1 or 1 < pp <= depth // each:
                layers = balanced_layers(before, layer, after, module.layer_count, pp * each)
                ways.append(_Way(tp, choice, pp, each, layers, _stages(layers, pp), three))
    return _tabulate(module, costs, rows, ways, given)


def _stages(layers: tuple[int, ...], pp: int) -> list[tuple[int, ...]]:
    """The distinct stages of a module; of equal ones the first, which holds the most microbatches.

    Each is numbers of what stands before the layers, of layers, and of what stands behind them: on its device, held by
    each microbatch in flight, and held always; and the microbatches in flight. Of a stage with chunks, every chunk of a
    microbatch counts as one (`interleaved_bounds`), with the layers of the largest; what only one chunk has counts for
    the microbatches that are in that one.
    """
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for place in range(pp):
        chunks = layers[place::pp]
        first, last = int(place == 0), int(place == pp - 1)
        device = (first, sum(chunks), last)
        if len(chunks) == 1:
            stage = (*device, *device, 0, 0, 0, pp - place)
        else:
            stage = (*device, 0, max(chunks), 0, 2 * pp * first, 0, 2 * last, len(layers) + pp - 2 * place - 1)
        found.setdefault((*device, max(chunks)), stage)
    return list(found.values())


def _tabulate(
    module: ModuleSpec, costs: CostModel, rows: Int[np.ndarray, " k"], ways: list[_Way], given: FixedRanks
) -> ModuleTable:
    width = max(len(way.stages) for way in ways)
    stages = np.array([way.stages + way.stages[-1:] * (width - len(way.stages)) for way in ways], float)  # [o, g, 10]
    seconds = np.array([[piece.seconds for piece in way.pieces] for way in ways])  # [o, 3, k]
    sizes = np.array([[piece.parameters for piece in way.pieces] for way in ways])  # [o, 3, 4]
    held = np.array([[piece.saved for piece in way.pieces] for way in ways])  # [o, 3, 3]
    again = np.array([[piece.recomputed for piece in way.pieces] for way in ways])
    device, flying, always, ahead = stages[..., :3], stages[..., 3:6], stages[..., 6:9], stages[..., 9]
    chunks = np.array([way.chunks for way in ways])
    numbers = np.moveaxis(device @ sizes, 2, 0)
    return ModuleTable(
        module,
        costs,
        rows,
        np.array([way.tp for way in ways]),
        np.array([way.pp for way in ways]),
        chunks,
        tuple(way.recompute for way in ways),
        tuple(way.layers for way in ways),
        (device @ seconds).max(axis=1),
        (seconds[:, 0] + module.layer_count * seconds[:, 1] + seconds[:, 2]) / chunks[:, None],
        *numbers,
        ahead,
        RowBytes(*np.moveaxis(flying @ held, 2, 0)),
        RowBytes(*np.moveaxis(always @ held, 2, 0)),
        RowBytes(*np.moveaxis(again.max(axis=1), 1, 0)),
        given,
    )
