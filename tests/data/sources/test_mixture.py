import pytest

from data.errors import DataError
from data.records import Record
from data.sources.mixture import Mixture


class Numbers:
    """So many empty records."""

    def __init__(self, length):
        self.name = "numbers"
        self._length = length

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        return Record(str(index), ())


def test_it_tells_names_sizes_and_shares():
    few, many = Numbers(3), Numbers(500)
    mixture = Mixture((("few", few, 1.0), ("many", many, 3.0)))
    assert mixture.names == ("few", "many")
    assert mixture.sizes == {"few": 3, "many": 500}
    assert mixture.shares == {"few": 0.25, "many": 0.75}
    assert mixture["many"] is many
    with pytest.raises(DataError, match="no source 'none' in the mixture; it has few, many"):
        mixture["none"]


@pytest.mark.parametrize(
    ("sources", "reason"),
    [
        ((), "is empty"),
        ((("a", Numbers(1), 1.0), ("a", Numbers(2), 1.0)), "names a source twice"),
        ((("a", Numbers(0), 1.0),), "a has no records"),
        ((("a", Numbers(1), 0.0),), "weight of a is 0.0"),
        ((("a", Numbers(1), float("nan")),), "weight of a is nan"),
        ((("a", Numbers(1), float("inf")),), "weight of a is inf"),
    ],
)
def test_what_is_no_mixture_is_refused(sources, reason):
    with pytest.raises(DataError, match=reason):
        Mixture(sources)
