import dataclasses

import pytest

from data.datasets.dataset import Dataset, SampleIndex
from data.datasets.easy_vqa import text_sample
from data.errors import BadSampleError, DataError
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat
from data.text.prompt_format import PromptFormat
from data.text.word_tokenizer import WordTokenizer


@dataclasses.dataclass
class Words:
    """A source of text samples only, one kind a size."""

    sizes: dict[str, int]
    tokenizer: WordTokenizer = WordTokenizer(("a", "b"))
    evaluated_kinds: tuple[str, ...] = ()
    prompt_format: PromptFormat = PromptFormat()

    def samples_by_kind(self, form):
        return {
            kind: [text_sample("a " * number, "b", self.tokenizer, form) for number in range(size)]
            for kind, size in self.sizes.items()
        }


def test_sample_ids_count_through_the_kinds():
    source = Words({"short": 3, "long": 4})
    assert isinstance(source, Dataset)
    catalogue = SampleIndex(source, SampleFormat())
    assert (catalogue.ids_of_kind("short"), catalogue.ids_of_kind("long")) == (range(0, 3), range(3, 7))
    assert [catalogue.kind_of(number) for number in range(7)] == ["short"] * 3 + ["long"] * 4
    assert [catalogue.load(number).id for number in range(7)] == list(range(7))
    assert [len(catalogue.load(number).layout.tokens) for number in range(7)] == [4, 5, 6, 4, 5, 6, 7]


def test_unknown_kinds_and_ids_are_named():
    catalogue = SampleIndex(Words({"short": 3}), SampleFormat())
    with pytest.raises(DataError, match="no samples of kind 'sound'; it has short"):
        catalogue.ids_of_kind("sound")
    for number in (-1, 3):
        with pytest.raises(DataError, match=f"sample id {number} is outside the data set's 3 samples"):
            catalogue.load(number)


def test_kinds_without_samples_are_refused():
    with pytest.raises(DataError, match="no none samples"):
        SampleIndex(Words({"some": 1, "none": 0}), SampleFormat())


class Counted:
    """Samples of which the second cannot be used; counts how often it is asked."""

    def __init__(self, form):
        self.form, self.asked = form, 0

    def __len__(self):
        return 2

    def __getitem__(self, index):
        self.asked += 1
        if index == 1:
            raise BadSampleError("second.json", "half of it is missing")
        return text_sample("a", "b", WordTokenizer(("a", "b")), self.form)


class CountedSource:
    tokenizer = WordTokenizer(("a", "b"))
    evaluated_kinds = ()
    prompt_format = PromptFormat()

    def samples_by_kind(self, form):
        self.samples = Counted(form)
        return {"text": self.samples}


def test_metadata_is_read_once_for_sizes_of_good_and_bad_samples():
    source = CountedSource()
    catalogue = SampleIndex(source, SampleFormat())
    for _ in range(3):
        assert catalogue.sizes(0) == SampleSizes(tokens=5, items={"patches": ()}, targets=2)
        with pytest.raises(BadSampleError, match="half of it is missing"):
            catalogue.sizes(1)
    assert source.samples.asked == 2
