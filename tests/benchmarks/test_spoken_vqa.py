"""What the benchmark changes of the held-out split: every clip says another question, or every image is another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.changed_inputs import deranged
from benchmarks.spoken_vqa import commonest_answer_accuracy, write_mismatched_speech
from data.datasets.spoken_clips import read_spoken_clips
from tests.tones import write_tones

TEXTS = ["is there a circle?", "what is it?", "what color is the circle?"]


def test_two_thirds_can_be_answered_without_looking():
    assert commonest_answer_accuracy() == pytest.approx(0.670, abs=5e-4)


@given(st.integers(2, 60))
def test_nothing_stays_where_it_is(count):
    items = list(range(count))
    assert sorted(deranged(items)) == items
    assert all(item != place for place, item in enumerate(deranged(items)))


def test_each_clip_is_said_to_be_another_question(tmp_path):
    write_tones(tmp_path / "speech", TEXTS)
    (tmp_path / "other").mkdir()
    write_mismatched_speech(tmp_path / "speech", tmp_path / "other")
    for split in ("train", "test"):
        before, after = read_spoken_clips(tmp_path / "speech", split), read_spoken_clips(tmp_path / "other", split)
        assert [clip.file for clip in before] == [clip.file for clip in after]
        assert all(was.text != now.text for was, now in zip(before, after, strict=True))
        assert {clip.text for clip in after} == set(TEXTS)
        assert all((tmp_path / "other" / clip.file).is_file() for clip in after)
