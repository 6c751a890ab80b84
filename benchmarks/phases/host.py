"""Time on the host: dealing the images of a large step, and making the tables of its exchanges."""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.phases.figures import figure
from benchmarks.rows import Row
from data.packing.phases.item_tables import BatchItems, deal_phase, first_slots, microbatch_items
from data.packing.phases.phase_rows import PhaseRows
from sharding.runtime.exchange.tables import TokenRuns, TokenShards, exchange_tables

ROWS, MICROBATCHES, ROW_TOKENS = 1920, 32, 8192
ENCODER_REPLICAS, BACKBONE_REPLICAS, TENSOR_RANKS, LOCAL_DEVICES = 90, 15, 4, 8
TABLE_SECONDS_GOAL, BYTES_GOAL = 0.020, 1.1


def host_rows() -> list[Row]:
    """Dealing the images of a step and making the tables of one host's devices."""
    random = np.random.default_rng(0)
    items = draw_items(random)
    phase = PhaseRows(
        module="vision",
        unit="vision",
        is_generator=False,
        rows=ENCODER_REPLICAS,
        slots=ROW_TOKENS,
        capacities=(ROW_TOKENS,),
        values="tokens",
        values_per_slot=1,
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
        for dealt in microbatch_items(deal(), MICROBATCHES):
            in_batch, in_phase = first_slots(dealt, phase, phase.largest)
            runs = TokenRuns(in_phase, in_batch, dealt[:, -1])
            there = exchange_tables(runs, source, target, devices, local)
            exchange_tables(runs.reversed, target, source, devices, local)
            sent, needed = sent + int(there.sizes.sum()), needed + int(dealt[:, -1].sum()) * TENSOR_RANKS
        return sent, needed

    deal = functools.partial(deal_phase, items, phase, rows_of_microbatch, MICROBATCHES)
    dealing, both = (_least_seconds(function) for function in (deal, tables))
    sent, needed = tables()
    note = f"{len(items.rows)} images, {ROWS} rows, {MICROBATCHES} microbatches"
    return [
        figure("seconds to deal the images of a step", dealing, None, note),
        figure(
            f"seconds to deal them and make the tables of {LOCAL_DEVICES} devices, both directions",
            both,
            TABLE_SECONDS_GOAL,
            f"{ENCODER_REPLICAS} replicas to {BACKBONE_REPLICAS} of {TENSOR_RANKS} tensor ranks",
        ),
        figure("tokens sent over tokens needed", sent / needed, BYTES_GOAL, "by a ragged all-to-all"),
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


def _least_seconds(function: Callable[[], Any], repeats: int = 5) -> float:
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
