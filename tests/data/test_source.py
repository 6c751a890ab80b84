import dataclasses

import pytest

from data.errors import DataError
from data.samples import SampleFormat, text_sample
from data.source import Catalogue, Source
from data.tokenizer import WordTokenizer


@dataclasses.dataclass
class Words:
    """A source of text samples only, one kind a size."""

    sizes: dict[str, int]
    tokenizer: WordTokenizer = WordTokenizer(("a", "b"))
    image_count: int = 1

    def datasets(self, form):
        return {
            kind: [text_sample(number, "a " * number, "b", self.tokenizer, form) for number in range(size)]
            for kind, size in self.sizes.items()
        }


def test_global_ids_count_through_the_kinds():
    source = Words({"short": 3, "long": 4})
    assert isinstance(source, Source)
    catalogue = Catalogue(source, SampleFormat())
    assert (catalogue.ids("short"), catalogue.ids("long")) == (range(0, 3), range(3, 7))
    assert [catalogue.kind(number) for number in range(7)] == ["short"] * 3 + ["long"] * 4
    assert [catalogue.load(number).id for number in range(7)] == list(range(7))
    assert [len(catalogue.load(number).layout.tokens) for number in range(7)] == [4, 5, 6, 4, 5, 6, 7]


def test_unknown_kinds_and_ids_are_named():
    catalogue = Catalogue(Words({"short": 3}), SampleFormat())
    with pytest.raises(DataError, match="no samples of kind 'sound'; it has short"):
        catalogue.ids("sound")
    for number in (-1, 3):
        with pytest.raises(DataError, match=f"sample id {number} is outside the source's 3 samples"):
            catalogue.load(number)


def test_an_empty_kind_is_refused():
    with pytest.raises(DataError, match="no none samples"):
        Catalogue(Words({"some": 1, "none": 0}), SampleFormat())
