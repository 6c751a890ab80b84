"""`python -m mmjax.synthesize_speech` in a process of its own."""

import os
import pathlib
import subprocess
import sys

import pytest

import mmjax
from data.datasets.spoken_clips import read_spoken_clips
from data.datasets.spoken_easy_vqa import SpokenEasyVQA
from tests.data.real_data import espeak

pytestmark = pytest.mark.processes

HOME = pathlib.Path(mmjax.__file__).resolve().parents[1]


def speak(folder, *arguments, code=0, **environment):
    ran = subprocess.run(
        [sys.executable, "-m", "mmjax.synthesize_speech", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HOME), **environment},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran


def test_written_folders_are_data_sets(tmp_path):
    """Real speech: one voice a split."""
    espeak()
    few = ("--folder=heard", "--voices=en-us", "--held_out_voices=en-gb+f4", "--speeds=260")
    shown = speak(tmp_path, *few).stdout
    assert "214 clips: 107 questions at 260 words per minute, by 1 voices for training and 1 held out" in shown
    before = (tmp_path / "heard" / "manifest.json").stat().st_ino, sorted((tmp_path / "heard").rglob("*.flac"))
    assert speak(tmp_path, *few).stdout == shown
    assert sorted((tmp_path / "heard").rglob("*.flac")) == before[1]
    for split, voice in (("train", "en-us"), ("test", "en-gb+f4")):
        assert {clip.voice for clip in read_spoken_clips(tmp_path / "heard", split)} == {voice}
        assert all(0.5 < clip.samples / 16_000 < 3 for clip in read_spoken_clips(tmp_path / "heard", split))
        assert len(SpokenEasyVQA(split, str(tmp_path / "heard")).clips) == 107


def test_missing_espeak_ng_says_how_to_install_it(tmp_path):
    shown = speak(tmp_path, code=2, PATH=str(tmp_path)).stderr
    assert "apt-get install espeak-ng" in shown and "Traceback" not in shown


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--voices=en-us,en-us+nobody", "has no variant 'nobody'"),
        ("--held_out_voices=en-us", "voice 'en-us' is named twice"),
        ("--speeds=fast", "--speeds: 'fast' is not a whole number"),
        ("--speeds=20", "a speed of 20 words per minute"),
    ],
)
def test_invalid_voices_and_speeds_are_refused_before_writing(tmp_path, argument, message):
    espeak()
    shown = speak(tmp_path, argument, code=2).stderr
    assert message in shown and not (tmp_path / "speech").exists()
