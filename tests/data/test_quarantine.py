import concurrent.futures
import json
import logging
import pickle
import resource

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
    assert len(quarantine) == 21
    # Five, then at 10 and 20; and the one of the other source.
    assert len(caplog.records) == 5 + 2 + 1 and "a: 20 samples skipped so far, the last: " in caplog.text
    assert quarantine.counts == {"a": 20, "b": 1}
    assert ("a", "7", "cut") in quarantine.entries
    assert quarantine.entries[-1] == ("b", "7", "torn")
    assert "b: 7 skipped: torn" in caplog.text


def test_exceeding_the_share_of_a_source_names_five_samples():
    quarantine = Quarantine({"a": 100, "b": 10_000}, 0.11)
    for number in range(11):
        quarantine.add("a", f"key {number}", "cut")
    quarantine.add("a", "key 0", "cut")
    assert quarantine.excess() == ""
    quarantine.add("b", "key", "cut")
    quarantine.add("a", "key 11", "cut")
    quarantine.add("a", "key 3", "cut")
    assert quarantine.excess() == (
        "a: 12 of 100 samples cannot be used: 12.00%, more than Quarantine.max_share = 11.00%; repair them or raise "
        "Quarantine.max_share: key 0 (cut), key 1 (cut), key 2 (cut), key 3 (cut), key 4 (cut) and 7 more"
    )


def test_share_zero_allows_no_bad_sample():
    quarantine = Quarantine({"a": 100}, 0.0)
    quarantine.add("a", "a.png", "cut")
    assert quarantine.excess().startswith("a: 1 of 100") and quarantine.excess().endswith(": a.png (cut)")


def test_a_pickled_copy_is_independent():
    quarantine = Quarantine({"a": 100}, 0.5)
    quarantine.add("a", "1", "cut")
    copy = pickle.loads(pickle.dumps(quarantine))
    copy.add("a", "2", "torn")
    assert quarantine.entries == (("a", "1", "cut"),)
    assert copy.entries == (("a", "1", "cut"), ("a", "2", "torn"))


def test_entries_are_listed_in_a_file_as_they_are_added(tmp_path):
    path = tmp_path / "run" / "q.jsonl"
    quarantine = Quarantine({"a": 3}, 0.5)
    quarantine.add("a", "Blümchen \ud800", "cut\nin two")
    quarantine.list_in(path)
    first = {"source": "a", "key": "Blümchen \ud800", "reason": "cut\nin two"}
    assert listed(path) == [first]
    for _ in range(2):
        quarantine.add("a", "2", "torn")
    assert listed(path) == [first, {"source": "a", "key": "2", "reason": "torn"}]
    assert f"raise Quarantine.max_share; they are listed in {path}: " in quarantine.excess()


def test_a_later_run_lists_only_what_is_new_even_if_the_last_line_was_cut(tmp_path):
    path = tmp_path / "q.jsonl"
    for keys in ("ab", "abc"):
        quarantine = Quarantine({"s": 9}, None)
        quarantine.list_in(path)
        for key in keys:
            quarantine.add("s", key, "cut")
    assert [entry["key"] for entry in listed(path)] == ["a", "b", "c"]
    path.write_text(path.read_text()[:-5])
    quarantine = Quarantine({"s": 9}, None)
    quarantine.list_in(path)
    quarantine.add("s", "c", "cut again")
    lines = path.read_text().splitlines()
    assert len(lines) == 4 and json.loads(lines[-1])["reason"] == "cut again"


def test_a_list_that_cannot_be_written_is_a_warning_and_is_complete_once_it_can(tmp_path, caplog):
    path = tmp_path / "q.jsonl"
    quarantine = Quarantine({"s": 9}, None)
    quarantine.list_in(path)
    path.symlink_to("/dev/full")
    for key in "ab":
        quarantine.add("s", key, "cut")
    path.unlink()
    path.touch()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))  # the disk takes a part of a line
    try:
        quarantine.add("s", "c", "cut")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == ""
    pickle.loads(pickle.dumps(quarantine)).add("s", "d", "cut")
    assert [entry["key"] for entry in listed(path)] == list("abcd")
    said = [record.getMessage() for record in caplog.records if str(path) in record.getMessage()]
    assert len(said) == 2
    assert "the list of refused samples, cannot be written (No space left on device)" in said[0]
    assert "can be written again" in said[1]


def listed(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_bad_arguments_are_refused():
    with pytest.raises(DataError, match=r"max_share is 1\.0; it must be in \[0, 1\)"):
        Quarantine({}, 1.0)
    with pytest.raises(DataError, match="no source 'b'; there are a"):
        Quarantine({"a": 1}, 0.5).add("b", "1", "cut")


@given(
    refusals=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9).map(str), st.text(max_size=3)), max_size=40),
    data=st.data(),
)
def test_the_first_sample_over_the_share_is_an_excess(refusals, data):
    sizes, share = {"a": 10, "b": 7}, data.draw(st.sampled_from([0.0, 0.3, 0.5]))
    quarantine = Quarantine(sizes, share)
    seen = {"a": set(), "b": set()}
    for source, key, reason in refusals:
        seen[source].add(key)
        quarantine.add(source, key, reason)
        assert bool(quarantine.excess()) == any(len(keys) > share * sizes[name] for name, keys in seen.items())
    assert quarantine.counts == {name: len(keys) for name, keys in seen.items()}


def test_long_keys_and_reasons_are_shortened_in_the_list_in_the_log_and_in_the_error(tmp_path, caplog):
    quarantine = Quarantine({"a": 10}, 0.0)
    quarantine.list_in(tmp_path / "refused.jsonl")
    for number in range(6):
        quarantine.add("a", f"{number}" + "k" * 10**6, "r" * 10**6)
    lines = (tmp_path / "refused.jsonl").read_text().splitlines()
    assert len(lines) == 6 and all(len(line) < 1_200 for line in lines)
    assert max(len(record.getMessage()) for record in caplog.records) < 1_200
    assert len(quarantine.excess()) < 2_000 and len(quarantine) == 6
