"""Held-out accuracy: the share of questions whose answer the model gets right, word for word."""

import dataclasses
from collections.abc import Iterable

import jax
import numpy as np
from jax.experimental import multihost_utils

from data.packing.global_batch import GlobalBatch
from mmjax.training.engine.engine import Engine
from sharding.runtime.executor import TrainState


@dataclasses.dataclass(frozen=True)
class AnswerScore:
    """Questions answered right, and all questions."""

    correct: int
    questions: int

    @property
    def accuracy(self) -> float:
        """Share answered right; 0 without questions."""
        return self.correct / self.questions if self.questions else 0.0


def evaluate_answers(engine: Engine, state: TrainState, batches: Iterable[GlobalBatch]) -> AnswerScore:
    """Scores every question of the batches.

    An answer is right if every word of it, its end included, is the likeliest after the words before it: that is
    what greedy decoding would write.
    """
    weights = engine.executor.compute_weights(state)
    backbone = engine.config.backbone.name
    right = questions = 0
    for batch in batches:
        judged = engine.executor.evaluate(weights, engine.place_batch(batch.arrays, 0))
        microbatches = next((of for of in judged.values() if of and f"{backbone}/correct" in of[0][1]), [])
        correct = [arrays[f"{backbone}/correct"] for _, arrays in microbatches]
        more = count_answers(batch.arrays[backbone], *_gathered(correct, batch.arrays[backbone]["weights"].shape))
        right, questions = right + more[0], questions + more[1]
    if jax.process_count() > 1:
        right, questions = (int(n) for n in multihost_utils.process_allgather(np.array([right, questions])).sum(0))
    return AnswerScore(right, questions)


def _gathered(microbatches: list[jax.Array], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """`[n, s]` judgements that this process holds, and which rows those are; each row is held by one process only."""
    correct, held = np.zeros(shape, bool), np.zeros(shape[:1], bool)
    for number, array in enumerate(microbatches):
        for shard in array.addressable_shards:
            if shard.replica_id == 0:
                rows = np.arange(array.shape[0])[shard.index[0]] + number * array.shape[0]
                correct[rows], held[rows] = np.asarray(shard.data), True
    return correct, held


def count_answers(arrays: dict[str, np.ndarray], correct: np.ndarray, held: np.ndarray) -> tuple[int, int]:
    """(answers all of whose target tokens are correct, answers) in the rows that are held.

    An answer is one branch of one sample of one row.
    """
    rows, places = np.nonzero((arrays["weights"] > 0) & held[:, None])
    which = np.stack([rows, arrays["segments"][rows, places], arrays["branches"][rows, places]])
    answers, number = np.unique(which, axis=1, return_inverse=True)
    wrong = np.bincount(number.reshape(-1), ~correct[rows, places], minlength=answers.shape[1])
    return int(np.sum(wrong == 0)), answers.shape[1]
