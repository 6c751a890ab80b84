"""The last values that were used are kept, and no others."""

from sharding.recently_used import RecentlyUsed


def test_values_are_made_once_while_they_are_among_the_last():
    made: list[str] = []
    values = RecentlyUsed[str](2)

    def get(key: str) -> str:
        return values.get(key, lambda: made.append(key) or key.upper())

    assert [get(key) for key in "aabab"] == list("AABAB")
    assert made == ["a", "b"]
    assert [get(key) for key in "cba"] == list("CBA")  # of a and b, b was used last
    assert made == ["a", "b", "c", "a"]
