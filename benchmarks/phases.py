"""`python -m benchmarks.phases`: what it costs to give modules rows of their own.

On the host: dealing the images of a large step and making the tables of its exchanges. On the devices: a step of a
configuration with and without, in turns, where rows and capacities stay as large as they are, so that all that differs
is dealing and exchange.
"""

import dataclasses
import functools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.rows import Row, every_goal_met, package_versions, print_table
from data.packing.phases.item_tables import BatchItems, deal_phase, first_cells, microbatch_items
from data.packing.phases.phase_rows import PhaseRows
from mmjax import cli
from sharding.plans.plan import Plan
from sharding.runtime.exchange.tables import TokenRuns, TokenShards, exchange_tables

if TYPE_CHECKING:
    from mmjax.training.config import TrainConfig

ROWS, MICROBATCHES, ROW_TOKENS = 1920, 32, 8192
ENCODER_REPLICAS, BACKBONE_REPLICAS, TENSOR_RANKS, LOCAL_DEVICES = 90, 15, 4, 8
TABLE_SECONDS_GOAL, BYTES_GOAL = 0.020, 1.1
LOSS_GOAL = 1e-4
WARM_UP = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseArguments(cli.GinArguments, cli.JsonArguments):
    """Flags of the command."""

    steps: int = cli.flag(20, "Steps of each plan to time.", metavar="N", parse=cli.integer(1))


def main(arguments: PhaseArguments) -> int:
    """Prints the figures; 1 if a goal is missed."""
    rows = [*host_rows(), *step_rows(cli.training_config(arguments), arguments.steps)]
    if arguments.json:
        print(json.dumps({"rows": rows, "versions": package_versions()}))
    else:
        print_table(rows, "note", 3)
    return 0 if every_goal_met(rows) else 1


def host_rows() -> list[Row]:
    """Dealing the images of a step and making the tables of one host's devices."""
    random = np.random.default_rng(0)
    items = draw_items(random)
    phase = PhaseRows(
        module="vision",
        is_generator=False,
        rows=ENCODER_REPLICAS,
        cells=ROW_TOKENS,
        capacities=(ROW_TOKENS,),
        values="tokens",
        values_per_cell=1,
    )
    rows_of_microbatch = ROWS // MICROBATCHES
    devices = ENCODER_REPLICAS + BACKBONE_REPLICAS * TENSOR_RANKS
    source = TokenShards(tuple((replica,) for replica in range(ENCODER_REPLICAS)), phase.largest)
    held = np.arange(ENCODER_REPLICAS, devices).reshape(BACKBONE_REPLICAS, TENSOR_RANKS).tolist()
    shard = ROW_TOKENS * rows_of_microbatch // BACKBONE_REPLICAS
    target = TokenShards(tuple(map(tuple, held)), shard)
    local = range(LOCAL_DEVICES)

    def tables() -> tuple[int, int]:
        sent = needed = 0
        for of_microbatch in microbatch_items(deal(), MICROBATCHES):
            in_batch, in_phase = first_cells(of_microbatch, phase, phase.largest)
            runs = TokenRuns(in_phase, in_batch, of_microbatch[:, -1])
            there = exchange_tables(runs, source, target, devices, local)
            exchange_tables(runs.reversed, target, source, devices, local)
            sent, needed = sent + int(there.sizes.sum()), needed + int(of_microbatch[:, -1].sum()) * TENSOR_RANKS
        return sent, needed

    deal = functools.partial(deal_phase, items, phase, rows_of_microbatch, MICROBATCHES)
    dealing, both = (_least_seconds(function) for function in (deal, tables))
    sent, needed = tables()
    what = f"{len(items.rows)} images, {ROWS} rows, {MICROBATCHES} microbatches"
    return [
        _row("seconds to deal the images of a step", dealing, None, what),
        _row(
            f"seconds to deal them and make the tables of {LOCAL_DEVICES} devices, both directions",
            both,
            TABLE_SECONDS_GOAL,
            f"{ENCODER_REPLICAS} replicas to {BACKBONE_REPLICAS} of {TENSOR_RANKS} tensor ranks",
        ),
        _row("tokens sent over tokens needed", sent / needed, BYTES_GOAL, "by a ragged all-to-all"),
    ]


def draw_items(random: np.random.Generator) -> BatchItems:
    """Images of 64 to 1,024 tokens, up to seven in a row."""
    counts = random.integers(0, 8, ROWS)
    rows = np.repeat(np.arange(ROWS), counts)
    lengths = random.integers(64, 1025, len(rows))
    ends = np.cumsum(lengths)
    first = np.searchsorted(rows, rows)
    places = ends - lengths - (ends - lengths)[first]
    return BatchItems(rows, places, lengths)


def step_rows(config: "TrainConfig", steps: int) -> list[Row]:
    """A step whose encoders' and generators' items are dealt over rows of their own, over the step without that."""
    import jax

    from mmjax.training.config import load_configured_plan

    plan, _ = load_configured_plan(config, jax.device_count())
    own = with_own_rows(plan, config.model.backbone.name, config.data.rows)
    without, dealt = (np.array(each) for each in zip(*measure_steps(config, (plan, own), steps), strict=True))
    ratio = statistics.median(dealt[:, 0]) / statistics.median(without[:, 0])
    error = float(np.max(np.abs(dealt[:, 1] / without[:, 1] - 1)))
    note = ", ".join(f"{unit.rows} rows of {unit.name}" for unit in own.units if unit.rows)
    return [
        _row("processor time of a step with rows of their own over without", ratio, None, f"{note}; {steps} steps"),
        _row("largest relative difference of a loss", error, LOSS_GOAL, "the same steps"),
    ]


def measure_steps(config: "TrainConfig", plans: Sequence[Plan], steps: int) -> list[list[tuple[float, float]]]:
    """For each step, the processor seconds of this process and the loss, of each of the plans in turns."""
    import jax

    from data.packing.pipeline import training_batches
    from mmjax.training.engine.engine import Engine

    batches = training_batches(config.data, config.model, config.dataset("train"))
    try:
        arrays = [next(batches).arrays for _ in range(WARM_UP + steps)]
    finally:
        batches.close()
    engines = [Engine(config.model, plan, arrays[0], config.engine_settings) for plan in plans]
    states = [engine.initial_state() for engine in engines]
    measured = []
    for step, batch in enumerate(arrays):
        measured.append([])
        for number, engine in enumerate(engines):
            begin = time.process_time()
            states[number], summary = engine.executor.step(states[number], engine.place_batch(batch, step))
            jax.block_until_ready(vars(states[number]))
            measured[-1].append((time.process_time() - begin, float(np.sum(summary.losses))))
    return measured[WARM_UP:]


def with_own_rows(plan: Plan, backbone: str, rows: int) -> Plan:
    """The plan with as many rows in every unit of one encoder or generator as the batch has, dealt anew."""
    own = rows // plan.microbatches
    units = (
        dataclasses.replace(unit, rows=own) if len(unit.modules) == 1 and backbone not in unit.modules else unit
        for unit in plan.units
    )
    return dataclasses.replace(plan, units=tuple(units))


def _least_seconds(function: Callable[[], Any], repeats: int = 5) -> float:
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _row(name: str, value: float, goal: float | None, note: str) -> Row:
    return {"name": name, "value": value, "goal": goal, "met": None if goal is None else value <= goal, "note": note}


COMMAND = cli.Command(
    name="benchmarks.phases",
    summary="Measures what it costs to deal the items of a module over rows of its own.",
    examples=("--gin_file=quickstart.gin",),
    arguments=PhaseArguments,
    prepare=lambda arguments: lambda: main(arguments),
)

if __name__ == "__main__":
    cli.run(COMMAND)
