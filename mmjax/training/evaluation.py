"""Held-out accuracy: the share of questions whose answer the model gets right, word for word."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from data.packing.global_batch import GlobalBatch
from mmjax.training.engine.engine import Engine
from mmjax.training.metrics.activity import ActivityCallback
from sharding.plans.stage_graph import StageId
from sharding.runtime.executor import StageEvaluation
from sharding.runtime.pipeline import TrainState


@dataclasses.dataclass(frozen=True)
class AnswerScore:
    """Questions answered correctly, and all questions."""

    correct: int
    questions: int

    @property
    def accuracy(self) -> float:
        """Share of questions answered correctly; 0 without questions."""
        return self.correct / self.questions if self.questions else 0.0


class EvaluationStoppedError(Exception):
    """An evaluation was stopped before its last batch."""


def evaluate_answers(
    engine: Engine,
    state: TrainState,
    batches: Iterable[GlobalBatch],
    callback: ActivityCallback = lambda done, total: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> AnswerScore:
    """Scores every question of the batches.

    An answer is correct if each of its tokens, the one that ends it included, is the likeliest after the tokens before
    it. That is what greedy decoding would write.

    Args:
        engine: The model on its plan.
        state: The parameters.
        batches: One pass over the questions, on whose items all processes agree.
        callback: Called with the number of batches evaluated, whose total is known at the end only.
        stop_requested: Asked before every batch, and in all processes with the same answer.

    Raises:
        EvaluationStoppedError: A stop was requested.
    """
    callback(0, None)
    done = 0
    weights = engine.executor.compute_weights(state)
    correct = questions = 0
    for batch in batches:
        if stop_requested():
            raise EvaluationStoppedError
        evaluations = engine.executor.evaluate(weights, engine.place_batch(batch.arrays, 0, batch.exchange_tables))
        local = local_score(evaluations, batch, engine.config.backbone.name)
        correct, questions = correct + local.correct, questions + local.questions
        done += 1
        callback(done, None)
    callback(done, done)
    if jax.process_count() > 1:
        counts = multihost_utils.process_allgather(np.array([correct, questions]))
        correct, questions = (int(count) for count in np.asarray(counts).sum(0))
    return AnswerScore(correct, questions)


def local_score(
    evaluations: Mapping[StageId, Mapping[int, StageEvaluation]], batch: GlobalBatch, backbone: str
) -> AnswerScore:
    """The score on the rows of a batch that this process alone counts; those of all processes add up to the batch's.

    Args:
        evaluations: From `Executor.evaluate`.
        batch: The batch.
        backbone: Name of the module that answers.
    """
    metric = f"{backbone}/correct"
    correct_tokens = {
        number: evaluation.auxiliary_metrics[metric]
        for microbatches in evaluations.values()
        for number, evaluation in microbatches.items()
        if metric in evaluation.auxiliary_metrics
    }
    arrays = batch.arrays[backbone]
    return AnswerScore(*count_answers(arrays, *_local_rows(correct_tokens, arrays["weights"].shape)))


def _local_rows(microbatches: Mapping[int, jax.Array], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The rows of an array [n, s] that this process holds, given as microbatches [n / m, s] by number.

    Each row is held by one process alone, so that counts may be summed over processes.

    Returns:
        The array [n, s], False elsewhere, and which rows [n] they are.
    """
    correct, is_local = np.zeros(shape, bool), np.zeros(shape[:1], bool)
    for number, array in microbatches.items():
        for shard in array.addressable_shards:
            if shard.replica_id == 0:
                rows = np.arange(array.shape[0])[shard.index[0]] + number * array.shape[0]
                correct[rows], is_local[rows] = np.asarray(shard.data), True
    return correct, is_local


def count_answers(arrays: dict[str, np.ndarray], correct: np.ndarray, is_local: np.ndarray) -> tuple[int, int]:
    """How many answers are correct, and how many there are, in some rows of a batch.

    An answer is one branch of one sample of one row; it is correct if all of its target tokens are.

    Args:
        arrays: The backbone's arrays of the batch, [n, s] each.
        correct: [n, s], whether each target token is predicted.
        is_local: [n], the rows to count.
    """
    rows, positions = np.nonzero((arrays["weights"] > 0) & is_local[:, None])
    answer_of_token = np.stack([rows, arrays["segments"][rows, positions], arrays["branches"][rows, positions]])
    answers, answer_numbers = np.unique(answer_of_token, axis=1, return_inverse=True)
    wrong_tokens = np.bincount(answer_numbers.reshape(-1), ~correct[rows, positions], minlength=answers.shape[1])
    return int(np.sum(wrong_tokens == 0)), answers.shape[1]
