import concurrent.futures
import json
import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import DataError
from data.quarantine import Quarantine


def test_bad_samples_are_listed_and_logged_once_whichever_thread_adds_them(caplog):
    quarantine = Quarantine({"a": 100, "b": 100}, 0.2)
    keys = [str(number) for number in range(20) for _ in range(5)]
    with caplog.at_level(logging.WARNING, logger="data"), concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: quarantine.add("a", key, "cut"), keys))
        quarantine.add("a", "7", "another reason")
        quarantine.add("b", "7", "torn")
    assert len(quarantine) == len(caplog.records) == 21
    assert quarantine.counts == {"a": 20, "b": 1}
    assert ("a", "7", "cut") in quarantine.entries
    assert quarantine.entries[-1] == ("b", "7", "torn")
    assert "b: 7 skipped: torn" in caplog.text


def test_exceeding_the_share_of_a_source_names_ten_samples():
    quarantine = Quarantine({"a": 100, "b": 10_000}, 0.11)
    for number in range(11):
        quarantine.add("a", f"key {number}", "cut")
    quarantine.add("a", "key 0", "cut")
    with pytest.raises(
        DataError, match=r"a: 12 of 100 samples cannot be used: 12\.00%, more than Quarantine\.max_share = 11"
    ) as caught:
        quarantine.add("a", "key 11", "cut")
    assert str(caught.value).endswith("key 9 (cut) and 2 more")
    with pytest.raises(DataError, match="a: 12 of 100"):
        quarantine.add("a", "key 3", "cut")
    quarantine.add("b", "key", "cut")


def test_share_zero_allows_no_bad_sample():
    with pytest.raises(DataError, match=r"1 of 100 .*: a\.png \(cut\)$"):
        Quarantine({"a": 100}, 0.0).add("a", "a.png", "cut")


def test_a_pickled_copy_is_independent():
    quarantine = Quarantine({"a": 100}, 0.5)
    quarantine.add("a", "1", "cut")
    copy = pickle.loads(pickle.dumps(quarantine))
    copy.add("a", "2", "torn")
    assert quarantine.entries == (("a", "1", "cut"),)
    assert copy.entries == (("a", "1", "cut"), ("a", "2", "torn"))


def test_entries_are_written_as_json_lines(tmp_path):
    quarantine = Quarantine({"a": 100}, 0.5)
    quarantine.add("a", "Blümchen \ud800", "cut\nin two")
    quarantine.add("a", "2", "torn")
    quarantine.write(tmp_path / "q.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text().splitlines()]
    assert lines == [
        {"source": "a", "key": "Blümchen \ud800", "reason": "cut\nin two"},
        {"source": "a", "key": "2", "reason": "torn"},
    ]


def test_bad_arguments_are_refused():
    with pytest.raises(DataError, match=r"max_share is 1\.0; it must be in \[0, 1\)"):
        Quarantine({}, 1.0)
    with pytest.raises(DataError, match="no source 'b'; there are a"):
        Quarantine({"a": 1}, 0.5).add("b", "1", "cut")


@given(
    found=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9).map(str), st.text(max_size=3)), max_size=40),
    data=st.data(),
)
def test_error_is_raised_by_the_first_sample_over_the_share(found, data):
    sizes, share = {"a": 10, "b": 7}, data.draw(st.sampled_from([0.0, 0.3, 0.5]))
    quarantine = Quarantine(sizes, share)
    seen = {"a": set(), "b": set()}
    for source, key, reason in found:
        seen[source].add(key)
        if len(seen[source]) <= share * sizes[source]:
            quarantine.add(source, key, reason)
        else:
            with pytest.raises(DataError):
                quarantine.add(source, key, reason)
    assert quarantine.counts == {name: len(keys) for name, keys in seen.items()}
