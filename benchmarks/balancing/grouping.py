"""How fast grouping is and how alike its groups are, compared with the paper's passes in plain Python.

The two sets of sample sizes are modelled on LLaVA's and InternVL's instructions. The figures of public code that a row
cites were measured for this project on a machine of two cores.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks.balancing import references
from data.packing.grouping.algorithms import IterativeSamplingAndFiltering
from data.packing.grouping.bin_packing import as_columns
from data.packing.grouping.comparison import dist_ratio
from data.packing.grouping.groups import Groups, exceeds_capacity
from data.packing.grouping.isf import sample_and_filter, search_isf_capacity
from data.packing.grouping.steps import balanced_steps

CAPACITY, THRESHOLD, ROUNDS = (9.0, 4096.0), (9.0, 3968.0), 10
TOKENS_PER_TILE = 256
REPLICAS = 8
GOAL_SPEEDUP, SIZE_TOLERANCE = 15.0, 0.005
GOAL_SECONDS = {"llava": 0.25, "internvl": 0.6}
GOAL_DIST_RATIOS = {"llava": (0.010, 0.008), "internvl": (0.005, 0.035)}
CAPACITY_SEARCH_SAMPLES, PUBLIC_CAPACITY_SECONDS, SAMPLES_PER_GROUP = 70_000, 22.5, 4.0
REPEATS = 5

Row = dict[str, Any]
VisionTextSizes = Float[np.ndarray, "n 2"]


def llava(count: int = 665_000) -> VisionTextSizes:
    """Vision tiles and backbone tokens, image tokens included, of samples with one image or none."""
    random = np.random.default_rng(0)
    has_image = random.random(count) < 0.94
    is_short = random.random(count) < 0.95
    short = lognormal(random, 200, 0.6, count).clip(16, 1024)
    long = lognormal(random, 600, 0.7, count).clip(64, 2048)
    without_image = lognormal(random, 600, 0.9, count).clip(16, 2048)
    text = np.where(has_image, np.where(is_short, short, long), without_image)
    return with_image_tokens(has_image.astype(float), text)


def internvl(count: int = 1_200_000) -> VisionTextSizes:
    """Vision tiles and backbone tokens, image tokens included; 0 to 12 tiles, of which more than 9 exceed Q."""
    random = np.random.default_rng(1)
    weights = np.array([0.34, 0.06, 0.20, 0.07, 0.20, 0.05, 0.03, 0.015, 0.015, 0.005, 0.005, 0.01])
    has_image = random.random(count) >= 0.1
    tiles = np.where(has_image, random.choice(np.arange(1, 13), count, p=weights / weights.sum()), 0)
    text = np.where(has_image, lognormal(random, 130, 0.7, count), lognormal(random, 450, 0.9, count))
    return with_image_tokens(tiles.astype(float), text)


def lognormal(random: np.random.Generator, mean: float, sigma: float, count: int) -> Float[np.ndarray, " n"]:
    """Draws log-normal numbers with the given mean."""
    return random.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)


def with_image_tokens(tiles: Float[np.ndarray, " n"], text: Float[np.ndarray, " n"]) -> VisionTextSizes:
    """Tiles, and the tokens of text and tiles together."""
    return np.stack([tiles, np.floor(text) + TOKENS_PER_TILE * tiles], axis=1)


def measure() -> list[Row]:
    """Returns all rows of this section."""
    data_sets = (("llava", llava), ("internvl", internvl))
    rows = []
    for name, draw in data_sets:
        rows += grouping_rows(name, draw())
    return rows + [capacity_row(name, draw(CAPACITY_SEARCH_SAMPLES)) for name, draw in data_sets]


def grouping_rows(name: str, sizes: VisionTextSizes) -> list[Row]:
    """Seconds, sizes of groups, and how level the steps are that are formed of them."""
    capacity, threshold = np.array(CAPACITY), np.array(THRESHOLD)
    policy = IterativeSamplingAndFiltering(threshold=THRESHOLD, rounds=ROUNDS)
    seconds, groups = best_of(lambda: policy(sizes, capacity, np.random.default_rng(0)), REPEATS)
    samples = [(number, *size) for number, size in enumerate(sizes.tolist())]
    reference_seconds, (accepted, left) = best_of(
        lambda: references.iterative_sampling_and_filtering(
            samples, CAPACITY, THRESHOLD, ROUNDS, np.random.default_rng(0)
        ),
        2,
    )
    fitting = np.flatnonzero(~exceeds_capacity(sizes, capacity))
    full_groups, rest = sample_and_filter(
        as_columns(sizes, capacity), capacity, threshold, ROUNDS, fitting, np.random.default_rng(0)
    )
    reference_dropped = len(sizes) - sum(map(len, accepted)) - len(left)
    mean_size = len(full_groups.members) / len(full_groups)
    reference_mean_size = sum(map(len, accepted)) / len(accepted)
    title = f"ISF, {name}, {len(sizes):,} samples"
    steps, _ = balanced_steps(groups, sizes, REPLICAS, np.random.default_rng(0))
    dist_ratios = dist_ratio(groups.sums(sizes), steps).mean(axis=0)
    last_groups = references.sample_groups(left, CAPACITY, np.random.default_rng(0))
    random_dist_ratios = dist_ratios_of_random_steps([*accepted, *last_groups])
    return [
        row(f"{title}: seconds", seconds, GOAL_SECONDS[name], reference_seconds),
        row(f"{title}: times as fast", reference_seconds / seconds, GOAL_SPEEDUP, 1.0, least=True),
        row(f"{title}: average group", mean_size, reference_mean_size, reference_mean_size, within=SIZE_TOLERANCE),
        row(f"{title}: samples left", len(rest), len(left), len(left), within=SIZE_TOLERANCE),
        row(f"{title}: samples dropped in silence", count_lost(groups, len(sizes)), 0, reference_dropped),
        *(
            row(f"{title}: dist ratio at {REPLICAS} replicas, {modality}", float(value), goal, float(reference))
            for modality, value, goal, reference in zip(
                ("vision", "text"), dist_ratios, GOAL_DIST_RATIOS[name], random_dist_ratios, strict=True
            )
        ),
    ]


def count_lost(groups: Groups, count: int) -> int:
    """Number of samples that are neither in a group nor refused, or are repeated."""
    occurrences = np.bincount(np.concatenate([groups.members, groups.refused]), minlength=count)
    return int((occurrences != 1).sum())


def dist_ratios_of_random_steps(groups: list[references.SampleGroup]) -> Float[np.ndarray, " 2"]:
    """Dist ratios of steps that take groups at random."""
    totals = np.array([[sum(sample[1] for sample in group), sum(sample[2] for sample in group)] for group in groups])
    count = len(totals) // REPLICAS * REPLICAS
    steps = np.random.default_rng(0).permutation(len(totals))[:count].reshape(-1, REPLICAS)
    return dist_ratio(totals, steps).mean(axis=0)


def capacity_row(name: str, sizes: VisionTextSizes) -> Row:
    """Seconds of the search for the capacities Q and Q' that give groups of a wanted size."""
    seconds, _ = best_of(
        lambda: search_isf_capacity(sizes, SAMPLES_PER_GROUP, (1.0, 16.0), 1, np.random.default_rng(0)), REPEATS
    )
    return row(f"choosing Q, {name}, {len(sizes):,} samples: seconds", seconds, 1.0, PUBLIC_CAPACITY_SECONDS)


def best_of(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The least processor seconds of some calls, which run on one core, and the last result."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        result = call()
        seconds.append(time.process_time() - start)
    return min(seconds), result


def row(
    name: str, value: float, goal: float, reference: float, *, least: bool = False, within: float | None = None
) -> Row:
    """A row; the goal is the most allowed, or the least, or what the value must be near to."""
    met = value >= goal if least else value <= goal
    if within is not None:
        met = abs(value - goal) <= within * abs(goal)
    return {"name": name, "value": value, "goal": goal, "met": bool(met), "reference": reference}
