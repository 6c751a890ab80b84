"""What an evaluation counts: questions, of which a conversation is one, and their answers."""

import numpy as np

from mmjax.training.evaluation import AnswerScore, count_answers

# Row 0: a conversation of three answers in segment 1, and in segment 2 an answer that ends where the next begins, of
# another branch. Row 1: an answer at the row's beginning, and one that ends the row. Row 2 belongs to another process.
SEGMENTS = np.array([[1] * 8 + [2] * 4, [1] * 6 + [2] * 6, [1] * 12])
BRANCHES = np.array([[0] * 8 + [0, 0, 1, 1], [0] * 12, [0] * 12])
WEIGHTS = np.array([[0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1], [1] * 12])
ARRAYS = {"segments": SEGMENTS, "branches": BRANCHES, "weights": WEIGHTS.astype(np.float32)}
LOCAL = np.array([True, True, False])


def test_a_conversation_is_one_question_of_several_answers():
    right = np.ones_like(WEIGHTS, bool)
    assert count_answers(ARRAYS, right, LOCAL) == AnswerScore(correct=5, questions=5, answers=7)
    right[0, 4] = False  # the second answer of the conversation
    right[1, 5] = False  # no target
    right[0, 11] = False  # the branch
    assert count_answers(ARRAYS, right, LOCAL) == AnswerScore(correct=3, questions=5, answers=7)
    assert count_answers(ARRAYS, right, np.zeros(3, bool)) == AnswerScore(0, 0, 0)


def test_what_is_counted_is_said():
    assert AnswerScore(3, 1200, 1200).counted() == "1,200 questions"
    said = AnswerScore(3, 1200, 3400).counted()
    assert said == "1,200 conversations (3,400 answers, of a conversation all must be right)"
    both = AnswerScore(0, 0, 0, targets=3, loss_sum=1.5) + AnswerScore(0, 0, 0, targets=1, loss_sum=0.5)
    assert both.loss == 0.5 and AnswerScore(0, 0, 0).loss is None
    assert AnswerScore(0, 0, 0).scalars("backbone") == {"accuracy": 0.0}
    assert AnswerScore(1, 2, 3) + AnswerScore(10, 20, 30) == AnswerScore(11, 22, 33)
