"""Scores of a trained model on held-out inputs as they are, and changed: does it use them?

`moving_shapes.py` changes clips, `spoken_vqa.py` speech and images.
"""

import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from data.data_config import DataConfig
    from data.datasets.dataset import Dataset
    from data.packing.batch_iterator import BatchIterator
    from mmjax.training.config import TrainConfig
    from mmjax.training.evaluation import AnswerScore

Item = TypeVar("Item")


def print_scores(
    config: "TrainConfig",
    workdir: pathlib.Path,
    data: "DataConfig",
    sources: "Iterable[tuple[str, Dataset]]",
) -> None:
    """Prints a line for every source: its name, the share of its questions that are answered right, and the time.

    Args:
        config: The configuration of the run.
        workdir: Its workdir.
        data: The rows of the batches.
        sources: Sources by what is done to them.
    """
    score = _make_scorer(config, workdir, data)
    for name, source in sources:
        begin = time.perf_counter()
        found = score(source)
        print(f"{name:<36}{found.accuracy:.1%} of {found.questions}, {time.perf_counter() - begin:.0f} s", flush=True)


def _make_scorer(
    config: "TrainConfig", workdir: pathlib.Path, data: "DataConfig"
) -> "Callable[[Dataset], AnswerScore]":
    """Makes a function that scores a source by the newest checkpoint, on one device, in a configuration's rows."""
    from data.packing.pipeline import evaluation_batches
    from mmjax.training.checkpoints.manager import CheckpointManager
    from mmjax.training.engine.engine import Engine
    from mmjax.training.evaluation import evaluate_answers
    from sharding.plans.plan import single_device_plan
    from sharding.specs.modules import module_graph

    def batches(source: "Dataset") -> "BatchIterator":
        return evaluation_batches(data, config.model, source)

    plan = single_device_plan(module_graph(config.model))
    first = batches(config.dataset("test"))
    engine = Engine(config.model, plan, next(first).arrays, config.engine_settings)
    first.close()
    checkpoints = CheckpointManager(workdir / "checkpoints", config.model)
    state, _, _ = checkpoints.restore(engine)
    checkpoints.close()

    def score(source: "Dataset") -> "AnswerScore":
        held_out = batches(source)
        try:
            return evaluate_answers(engine, state, held_out)
        finally:
            held_out.close()

    return score


def deranged(items: Sequence[Item]) -> list[Item]:
    """The items in an order in which none keeps its place: each takes its neighbour's in a random ring."""
    import numpy as np

    ring = np.random.default_rng(0).permutation(len(items))
    found = list(items)
    for place, taken in zip(ring, np.roll(ring, 1), strict=True):
        found[place] = items[taken]
    return found
