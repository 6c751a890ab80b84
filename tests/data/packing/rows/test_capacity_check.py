"""A kind of samples of which none fits into a row ends a run before its first step."""

import dataclasses
import logging

import pytest

from data.datasets.dataset import SampleIndex
from data.errors import BadSampleError, DataError
from data.packing.pipeline import training_batches
from data.packing.rows.capacity_check import MAX_CHECKED, require_fitting_sample
from data.samples.sample import SampleSizes
from tests.data.first_samples import CONFIG, MODEL, First


def test_a_row_that_no_sample_fits_is_one_error_that_names_the_capacity(caplog):
    config = dataclasses.replace(CONFIG, tokens=8)
    with caplog.at_level(logging.WARNING), pytest.raises(DataError) as caught:
        training_batches(config, MODEL, First("train", 20))
    message = str(caught.value)
    assert message.startswith("vqa: none of 20 samples fits into a row: they need ") and "\n" not in message
    assert " tokens (DataConfig.tokens = 8); raise it " in message and "describe_data" in message
    assert not caplog.records


def test_one_kind_of_the_mixture_that_fits_nowhere_is_enough():
    config = dataclasses.replace(CONFIG, images=0)
    with pytest.raises(DataError, match=r"description: none of 20 .* need 1 to 1 images \(DataConfig\.images = 0\)"):
        training_batches(config, MODEL, First("train", 20))
    training_batches(dataclasses.replace(config, mixture=(("vqa", 1.0),)), MODEL, First("train", 20))


class Counting(SampleIndex):
    """An index of samples of given tokens, None for one that cannot be read, that counts what is read."""

    def __init__(self, tokens):
        self.tokens, self.reads = tokens, 0

    def kind_of(self, sample_id):
        return "made"

    def sizes(self, sample_id):
        self.reads += 1
        if self.tokens[sample_id] is None:
            raise BadSampleError(str(sample_id), "bad")
        return SampleSizes(tokens=self.tokens[sample_id])


@pytest.mark.parametrize(
    ("tokens", "reads"),
    [([5] * 9, 1), ([None, 20, 5, 5], 3), ([None] * 500, MAX_CHECKED), ([20] * (MAX_CHECKED - 1) + [5], MAX_CHECKED)],
    ids=["the first fits", "the third fits", "none can be read", "the last one checked fits"],
)
def test_headers_are_read_up_to_the_first_sample_that_fits(tokens, reads):
    samples = Counting(tokens)
    require_fitting_sample("made", range(len(tokens)), samples, dataclasses.replace(CONFIG, tokens=10).capacity)
    assert samples.reads == reads


def test_a_large_data_set_is_not_read_to_its_end():
    samples = Counting([20] * 100_000)
    with pytest.raises(DataError, match=f"made: none of {MAX_CHECKED} samples fits .* 20 to 20 tokens"):
        require_fitting_sample("made", range(100_000), samples, dataclasses.replace(CONFIG, tokens=10).capacity)
