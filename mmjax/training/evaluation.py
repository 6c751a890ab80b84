"""Held-out accuracy and loss: the share of questions whose answer the model gets right, word for word.

A conversation of several turns counts as one question, which is right if all of its answers are.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from data.packing.global_batch import GlobalBatch
from mmjax.training.engine.engine import Engine
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.executor import StageEvaluation
from sharding.runtime.pipeline import TrainState

EvaluationCallback = Callable[[int, int | None, "AnswerScore"], None]
"""Called with the number of evaluated batches, the number of all or None if unknown, and the score so far."""


@dataclasses.dataclass(frozen=True)
class AnswerScore:
    """Questions answered correctly, and all questions.

    Attributes:
        correct: Questions answered correctly.
        questions: All questions; a conversation is one.
        answers: All answers, more than questions if there are conversations.
        targets: Target tokens of all answers.
        loss_sum: Sum of the language loss over the target tokens, weighted as in training.
    """

    correct: int
    questions: int
    answers: int
    targets: int = dataclasses.field(default=0, compare=False)
    loss_sum: float = dataclasses.field(default=0.0, compare=False)

    @property
    def accuracy(self) -> float:
        """Share of questions answered correctly; 0 without questions."""
        return self.correct / self.questions if self.questions else 0.0

    @property
    def loss(self) -> float | None:
        """Mean of the language loss over target tokens, computed as in training; None without any."""
        return self.loss_sum / self.targets if self.targets else None

    def scalars(self, backbone: str) -> dict[str, float]:
        """The metrics of an evaluation: the accuracy, and the held-out loss by the name of the backbone."""
        loss = {} if self.loss is None else {f"held_out_loss/{backbone}": self.loss}
        return {"accuracy": self.accuracy, **loss}

    def counted(self) -> str:
        """The counts in words: questions, and answers where these differ."""
        if self.answers == self.questions:
            return f"{self.questions:,} questions"
        return f"{self.questions:,} conversations ({self.answers:,} answers, of a conversation all must be right)"

    def __add__(self, other: "AnswerScore") -> "AnswerScore":
        return AnswerScore(*map(sum, zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


class EvaluationStoppedError(Exception):
    """An evaluation was stopped before its last batch."""


def evaluate_answers(
    engine: Engine,
    state: TrainState,
    batches: Iterable[GlobalBatch],
    callback: EvaluationCallback = lambda done, total, score: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> AnswerScore:
    """Scores every question of the batches.

    An answer is correct if each of its tokens, the one that ends it included, is the likeliest after the tokens before
    it. That is what greedy decoding would write.

    Args:
        engine: The model on its plan.
        state: The parameters.
        batches: One pass over the questions, on whose items all processes agree.
        callback: Called with the number of batches evaluated, whose total is known at the end only, and the score so
            far, of this process alone until the end.
        stop_requested: Asked before every batch, and in all processes with the same answer.

    Raises:
        EvaluationStoppedError: A stop was requested.
    """
    score, done = AnswerScore(0, 0, 0), 0
    callback(0, None, score)
    weights = engine.executor.compute_weights(state)
    for batch in batches:
        if stop_requested():
            raise EvaluationStoppedError
        evaluations = engine.executor.evaluate(weights, engine.place_batch(batch.arrays, 0, batch.exchange_tables))
        score += local_score(evaluations, batch, engine.config.backbone.name)
        done += 1
        callback(done, None, score)
    if jax.process_count() > 1:
        *counts, loss_sum = dataclasses.astuple(score)
        gathered, losses = multihost_utils.process_allgather((np.array(counts), np.array(loss_sum, np.float32)))
        correct, questions, answers, targets = np.asarray(gathered).sum(0).tolist()
        loss_sum = float(np.asarray(losses, np.float64).sum())
        score = AnswerScore(correct, questions, answers, targets, loss_sum)
    callback(done, done, score)
    return score


def local_score(
    evaluations: Mapping[StageId, Mapping[int, StageEvaluation]], batch: GlobalBatch, backbone: str
) -> AnswerScore:
    """Returns the score on the rows of a batch that this process counts; the processes' scores add up to the batch's.

    Args:
        evaluations: Results of `Executor.evaluate`.
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
    correct, is_local = _local_rows(correct_tokens, arrays["weights"].shape)
    losses = (
        float(np.asarray(shard.data).sum())
        for microbatches in evaluations.values()
        for evaluation in microbatches.values()
        if backbone in evaluation.losses
        for shard in evaluation.losses[backbone].addressable_shards
        if shard.replica_id == 0
    )
    return dataclasses.replace(
        count_answers(arrays, correct, is_local),
        targets=int(((arrays["weights"] > 0) & is_local[:, None]).sum()),
        loss_sum=batch.targets * sum(losses),
    )


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


def count_answers(arrays: dict[str, np.ndarray], correct: np.ndarray, is_local: np.ndarray) -> AnswerScore:
    """The score on some rows of a batch.

    A question is one branch of one sample of one row, and correct if all of its target tokens are. Its answers are the
    runs of target tokens, which the turns of a conversation divide.

    Args:
        arrays: The backbone's arrays of the batch, [n, s] each.
        correct: [n, s], whether each target token is predicted.
        is_local: [n], the rows to count.
    """
    rows, positions = np.nonzero((arrays["weights"] > 0) & is_local[:, None])
    question_of_token = np.stack([rows, arrays["segments"][rows, positions], arrays["branches"][rows, positions]])
    questions, question_numbers = np.unique(question_of_token, axis=1, return_inverse=True)
    wrong_tokens = np.bincount(question_numbers.reshape(-1), ~correct[rows, positions], minlength=questions.shape[1])
    is_next = (np.diff(question_of_token, axis=1) == 0).all(0) & (np.diff(positions) == 1)
    return AnswerScore(int(np.sum(wrong_tokens == 0)), questions.shape[1], len(positions) - int(is_next.sum()))
