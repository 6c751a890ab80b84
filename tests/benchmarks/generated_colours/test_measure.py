"""The colours benchmark: the judge knows real pictures it never saw, and the count is of what was asked for."""

import types

import numpy as np
import pytest

from benchmarks.generated_colours import __main__ as generated_colours
from benchmarks.generated_colours.classifier import LabelledImages, labelled_images
from benchmarks.generated_colours.picture_table import GAP, PIXEL
from configs.common.errors import UserError
from data.datasets.easy_vqa import EasyVQA, describe_shape
from data.datasets.tone_vqa import ToneVQA

SIDE = 24
WRONG = 30


class Painter:
    """Stands for an `ImageGenerator`: gives real held-out images, the first few of another colour than described."""

    config = types.SimpleNamespace(image_size=SIDE)

    def __init__(self) -> None:
        self.real: LabelledImages = labelled_images(EasyVQA("test"), SIDE)
        self.seeds: list[int] = []

    def generate(self, descriptions: list[str], seeds: range, steps: int, guidance: float) -> np.ndarray:
        assert (steps, guidance) == (3, 2.0)
        self.seeds = list(seeds)
        colours, shapes = self.real.names
        labels = {
            describe_shape(colour, shape): (i, j) for i, colour in enumerate(colours) for j, shape in enumerate(shapes)
        }
        wanted = np.array([labels[text] for text in descriptions], np.int32)
        wanted[:WRONG, 0] = (wanted[:WRONG, 0] + 1) % len(colours)
        return np.stack([self._picture(label, number) for number, label in enumerate(wanted)])

    def _picture(self, label: np.ndarray, number: int) -> np.ndarray:
        (fitting,) = np.nonzero((self.real.labels == label).all(axis=1))
        return self.real.images[fitting[number % len(fitting)]]


@pytest.fixture(scope="module")
def painter() -> Painter:
    return Painter()


@pytest.fixture(scope="module")
def result(painter, compiled_as_users_do) -> dict:
    splits = (EasyVQA("train"), EasyVQA("test"))
    sampling = generated_colours.Sampling(steps=3, guidance=2.0, seed=5)
    return generated_colours.measure(painter, 7, splits, images=100, sampling=sampling)


@pytest.mark.layouts
def test_the_judge_knows_pictures_it_never_saw(result):
    assert result["judge"]["images"] > 800
    assert result["judge"]["colour"] > generated_colours.MIN_CLASSIFIER_ACCURACY and result["judge"]["shape"] > 0.75


@pytest.mark.layouts
def test_it_counts_the_colours_asked_for(result, painter):
    """Up to the judge's own error: 30 of 100 pictures have another colour, and nearly all the right shape."""
    assert abs(result["colour"] - (100 - WRONG)) <= 4
    assert result["shape"] >= 70
    assert painter.seeds == list(range(5, 105)) and result["trained_steps"] == 7


@pytest.mark.layouts
def test_every_colour_and_shape_is_asked_for_in_turn(result):
    by_colour = result["by_colour"].values()
    assert len(by_colour) == 8 and {figures["images"] for figures in by_colour} <= {12, 13, 14, 15}
    for field in ("images", "colour", "shape"):
        assert sum(figures[field] for figures in by_colour) == result[field]


@pytest.mark.layouts
def test_the_table_says_when_the_judge_cannot_be_trusted(result):
    assert "means nothing" not in generated_colours.format_result(result)
    doubtful = {**result, "judge": {**result["judge"], "colour": generated_colours.MIN_CLASSIFIER_ACCURACY}}
    table = generated_colours.format_result(doubtful)
    assert "means nothing" in table and table.splitlines()[9].split() == [
        "all",
        "100",
        str(result["colour"]),
        str(result["shape"]),
    ]


def test_the_judge_learns_from_the_pictures_that_the_run_generates():
    shapes = labelled_images(EasyVQA("test", generated_part="shape"), SIDE)
    whole = labelled_images(EasyVQA("test"), SIDE)
    np.testing.assert_array_equal(shapes.labels, whole.labels)
    coloured = [
        np.mean(np.abs(labelled.images - labelled.images[:, :1, :1]).max(-1) > 0.2, axis=(1, 2))
        for labelled in (shapes, whole)
    ]
    assert np.median(coloured[0]) > 2 * np.median(coloured[1])


def test_a_table_has_a_column_for_each_colour_and_a_row_for_each_shape():
    class Described:
        """Gives each picture the number of its description."""

        def generate(self, descriptions: list[str], seeds: range, steps: int, guidance: float) -> np.ndarray:
            assert descriptions[:4] == ["a black circle", "a black rectangle", "a black triangle", "a blue circle"]
            assert list(seeds) == list(range(5, 29)) and (steps, guidance) == (3, 2.0)
            return np.ones((24, 2, 2, 3), np.float32) * np.linspace(-1, 0.9, 24)[:, None, None, None]

    table = generated_colours.draw_table(Described(), generated_colours.Sampling(steps=3, guidance=2.0, seed=5))
    cell = 2 * PIXEL + GAP
    assert table.shape == (3 * cell - GAP, 8 * cell - GAP, 3)
    numbers = np.linspace(-1, 0.9, 24).reshape(8, 3)
    np.testing.assert_allclose(table[PIXEL::cell, PIXEL::cell, 0], numbers.T)
    assert (table[2 * PIXEL] == 1).all()


def test_easy_vqa_is_found_in_data_that_read_it():
    dataset = ToneVQA("test")
    assert generated_colours.easy_vqa_of(dataset) is dataset.easy_vqa


def test_data_without_pictures_of_easy_vqa_are_refused():
    with pytest.raises(UserError, match=r"TrainConfig\.dataset makes a FakeData; the judge knows easy-VQA alone"):
        generated_colours.easy_vqa_of(type("FakeData", (), {})())
