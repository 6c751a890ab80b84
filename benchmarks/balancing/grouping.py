"""How fast grouping is, and how like its groups are, beside the paper's passes in plain Python in the same run.

The two sets of sizes stand for LLaVA's and InternVL's instructions; the figures of public code that a row cites were
measured for this project on a machine of two cores.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks.balancing import grouping_references as references
from data.packing.grouping.algorithms import IterativeSamplingAndFiltering
from data.packing.grouping.balanced_steps import form_balanced_steps
from data.packing.grouping.groups import Groups
from data.packing.grouping.isf import sample_and_filter
from data.packing.grouping.isf_capacity import search_isf_capacity
from data.packing.grouping.next_fit import as_columns
from data.packing.grouping.oversized import exceeds_capacity
from data.packing.grouping.ratios import dist_ratio

CAPACITY, THRESHOLD, ROUNDS = (9.0, 4096.0), (9.0, 3968.0), 10
TOKENS_A_TILE = 256
INSTANCES = 8
FASTER, ALIKE = 15.0, 0.005
SECONDS = {"llava": 0.25, "internvl": 0.6}
DIST = {"llava": (0.010, 0.008), "internvl": (0.005, 0.035)}
UNKNOWN, PUBLIC_SECONDS, SAMPLES = 70_000, 22.5, 4.0
REPEATS = 5

Row = dict[str, Any]
Sizes = Float[np.ndarray, "n 2"]


def llava(count: int = 665_000) -> Sizes:
    """Vision tiles and backbone tokens, image tokens included: one image or none."""
    random = np.random.default_rng(0)
    has_image = random.random(count) < 0.94
    is_short = random.random(count) < 0.95
    short = lognormal(random, 200, 0.6, count).clip(16, 1024)
    long = lognormal(random, 600, 0.7, count).clip(64, 2048)
    alone = lognormal(random, 600, 0.9, count).clip(16, 2048)
    text = np.where(has_image, np.where(is_short, short, long), alone)
    return with_image_tokens(has_image.astype(float), text)


def internvl(count: int = 1_200_000) -> Sizes:
    """Vision tiles and backbone tokens, image tokens included: 0 to 12 tiles, of which more than 9 exceed Q."""
    random = np.random.default_rng(1)
    weights = np.array([0.34, 0.06, 0.20, 0.07, 0.20, 0.05, 0.03, 0.015, 0.015, 0.005, 0.005, 0.01])
    has_image = random.random(count) >= 0.1
    tiles = np.where(has_image, random.choice(np.arange(1, 13), count, p=weights / weights.sum()), 0)
    text = np.where(has_image, lognormal(random, 130, 0.7, count), lognormal(random, 450, 0.9, count))
    return with_image_tokens(tiles.astype(float), text)


def lognormal(random: np.random.Generator, mean: float, sigma: float, count: int) -> Float[np.ndarray, " n"]:
    """Draws of that mean."""
    return random.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)


def with_image_tokens(tiles: Float[np.ndarray, " n"], text: Float[np.ndarray, " n"]) -> Sizes:
    return np.stack([tiles, np.floor(text) + TOKENS_A_TILE * tiles], axis=1)


def measure() -> list[Row]:
    """Every row of this part."""
    rows = []
    for name, draw in (("llava", llava), ("internvl", internvl)):
        rows += grouping_rows(name, draw())
    return rows + [capacity_row(name, draw(UNKNOWN)) for name, draw in (("llava", llava), ("internvl", internvl))]


def grouping_rows(name: str, sizes: Sizes) -> list[Row]:
    """Seconds, what the groups are like, and what steps made of them are like."""
    capacity, threshold = np.array(CAPACITY), np.array(THRESHOLD)
    policy = IterativeSamplingAndFiltering(threshold=THRESHOLD, rounds=ROUNDS)
    seconds, groups = best_of(lambda: policy(sizes, capacity, np.random.default_rng(0)), REPEATS)
    items = [(number, *size) for number, size in enumerate(sizes.tolist())]
    theirs, (accepted, left) = best_of(
        lambda: references.iterate(items, CAPACITY, THRESHOLD, ROUNDS, np.random.default_rng(0)), 2
    )
    fitting = np.flatnonzero(~exceeds_capacity(sizes, capacity))
    ours, rest = sample_and_filter(
        as_columns(sizes, capacity), capacity, threshold, ROUNDS, fitting, np.random.default_rng(0)
    )
    dropped = len(sizes) - sum(map(len, accepted)) - len(left)
    size, reference_size = len(ours.members) / len(ours), sum(map(len, accepted)) / len(accepted)
    title = f"ISF, {name}, {len(sizes):,} samples"
    steps, _ = form_balanced_steps(groups, sizes, INSTANCES, np.random.default_rng(0))
    as_drawn = in_random_steps([*accepted, *references.sample(left, CAPACITY, np.random.default_rng(0))])
    formed = dist_ratio(groups.sums(sizes), steps).mean(axis=0)
    return [
        row(f"{title}: seconds", seconds, SECONDS[name], theirs),
        row(f"{title}: times as fast", theirs / seconds, FASTER, 1.0, least=True),
        row(f"{title}: average group", size, reference_size, reference_size, within=ALIKE),
        row(f"{title}: samples left", len(rest), len(left), len(left), within=ALIKE),
        row(f"{title}: samples dropped in silence", count_lost(groups, len(sizes)), 0, dropped),
        *(
            row(f"{title}: dist ratio at {INSTANCES} instances, {modality}", float(value), goal, float(drawn))
            for modality, value, goal, drawn in zip(("vision", "text"), formed, DIST[name], as_drawn, strict=True)
        ),
    ]


def count_lost(groups: Groups, count: int) -> int:
    """Samples that are neither in a group nor refused, and those that are repeated."""
    seen = np.bincount(np.concatenate([groups.members, groups.refused]), minlength=count)
    return int((seen != 1).sum())


def in_random_steps(groups: list[references.Group]) -> Float[np.ndarray, " 2"]:
    """Dist ratios if steps take groups at random."""
    totals = np.array([[sum(item[1] for item in group), sum(item[2] for item in group)] for group in groups])
    count = len(totals) // INSTANCES * INSTANCES
    steps = np.random.default_rng(0).permutation(len(totals))[:count].reshape(-1, INSTANCES)
    return dist_ratio(totals, steps).mean(axis=0)


def capacity_row(name: str, sizes: Sizes) -> Row:
    """Seconds to Q and Q' for groups of a wanted size."""
    seconds, _ = best_of(lambda: search_isf_capacity(sizes, SAMPLES, (1.0, 16.0), 1, np.random.default_rng(0)), REPEATS)
    return row(f"choosing Q, {name}, {len(sizes):,} samples: seconds", seconds, 1.0, PUBLIC_SECONDS)


def best_of(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The least of some times in seconds of this process, which runs on one core, and what came of it."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        found = call()
        times.append(time.process_time() - start)
    return min(times), found


def row(
    name: str, value: float, goal: float, reference: float, *, least: bool = False, within: float | None = None
) -> Row:
    """A row; the goal is the most allowed, or the least, or what the value must come near to."""
    met = value >= goal if least else value <= goal
    if within is not None:
        met = abs(value - goal) <= within * abs(goal)
    return {"name": name, "value": value, "goal": goal, "met": bool(met), "reference": reference}
