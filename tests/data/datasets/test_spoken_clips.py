import json
import threading

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from data.datasets.spoken_clips import MANIFEST, read_spoken_clips, write_spoken_clips
from data.errors import DataError
from data.media.sound.audio import audio_length, read_audio
from data.media.sound.mel import SAMPLE_RATE
from data.records import Media
from tests.tones import SPEEDS, VOICES, tone, write_tones

TEXTS = ["is there a circle?", "what is it?"]


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_text_voice_and_speed_is_a_clip_of_the_length_in_the_manifest(tmp_path):
    written = write_tones(tmp_path / "speech", TEXTS)
    read = {split: read_spoken_clips(tmp_path / "speech", split) for split in VOICES}
    assert [clip for split in VOICES for clip in read[split]] == written
    for split, clips in read.items():
        expected = {(text, voice, speed) for text in TEXTS for voice in VOICES[split] for speed in SPEEDS}
        assert {(clip.text, clip.voice, clip.speed) for clip in clips} == expected and len(clips) == len(expected)
    for clip in written:
        path = tmp_path / "speech" / clip.file
        assert (soundfile.info(path).samplerate, soundfile.info(path).channels) == (SAMPLE_RATE, 1)
        said = tone(clip.text, clip.voice, clip.speed)
        assert audio_length(Media.from_file(path)) == clip.samples == len(said)
        np.testing.assert_allclose(read_audio(Media.from_file(path)), said, atol=2**-15)
    assert {clip.voice for clip in read["train"]}.isdisjoint(clip.voice for clip in read["test"])


def test_an_interrupted_write_is_continued(tmp_path):
    """Stopped after any number of clips, one file cut and another half-written beside it, and called again."""
    write_tones(tmp_path / "whole", TEXTS)
    whole = files(tmp_path / "whole")
    half = tmp_path / "half"
    some = write_spoken_clips(half, TEXTS, VOICES, SPEEDS, tone, "tones")
    first = next(some)
    some.close()
    with pytest.raises(DataError, match="half is incomplete: it has no manifest.*mmjax.synthesize_speech --folder"):
        read_spoken_clips(half, "train")
    path = half / first.file
    path.write_bytes(path.read_bytes()[:30])
    path.with_name("other.flac.part").write_bytes(b"fLaC")
    write_tones(half, TEXTS)
    path.with_name("other.flac.part").unlink()
    assert files(half) == whole


def test_existing_clips_are_kept(tmp_path):
    write_tones(tmp_path, TEXTS)
    said = []

    def say(text, voice, speed):
        said.append((text, voice, speed))
        return tone(text, voice, speed)

    more = {**VOICES, "train": (*VOICES["train"], "third")}
    assert len(list(write_spoken_clips(tmp_path, TEXTS, more, SPEEDS, say, "tones"))) == 16
    assert sorted(said) == sorted((text, "third", speed) for text in TEXTS for speed in SPEEDS)
    assert {clip.voice for clip in read_spoken_clips(tmp_path, "train")} == {"low", "high", "third"}


def test_a_failure_leaves_no_manifest(tmp_path):
    failed = threading.Event()

    def say(text, voice, speed):
        if voice == "high":
            failed.set()
            raise DataError("hoarse")
        return tone(text, voice, speed)

    with pytest.raises(DataError, match="hoarse"):
        list(write_spoken_clips(tmp_path, TEXTS, VOICES, SPEEDS, say, "tones"))
    assert failed.is_set() and not (tmp_path / MANIFEST).exists()


@pytest.mark.parametrize(
    ("texts", "voices", "speeds", "message"),
    [
        ([], VOICES, [100], "no text"),
        (TEXTS, {"train": [], "test": []}, [100], "no voice"),
        (TEXTS, VOICES, [], "no speed"),
        (TEXTS * 2, VOICES, [100], r"text 'is there a circle\?' is named twice"),
        (TEXTS, {"train": ["a"], "test": ["a"]}, [100], "voice 'a' is named twice.*for one split only"),
        (TEXTS, VOICES, [100, 100], "speed 100 is named twice"),
        (["is it?", "is it!"], VOICES, [100], "file 'is_it' is named twice"),
    ],
)
def test_ambiguous_texts_voices_and_speeds_are_refused(tmp_path, texts, voices, speeds, message):
    with pytest.raises(DataError, match=message):
        write_spoken_clips(tmp_path, texts, voices, speeds, tone, "tones")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "clips").write_text("a file")
    with pytest.raises(DataError, match="cannot be written"):
        write_tones(tmp_path, TEXTS)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(
        DataError, match="nowhere does not exist.*python -m mmjax.synthesize_speech --folder=.*nowhere writes it"
    ):
        read_spoken_clips(tmp_path / "nowhere", "train")


def test_a_split_without_clips_is_named(tmp_path):
    list(write_spoken_clips(tmp_path, TEXTS, {"train": ["a"]}, [100], tone, "tones"))
    with pytest.raises(DataError, match="no clip of the split 'test'"):
        read_spoken_clips(tmp_path, "test")


def changed(document, **fields):
    return {**document, "clips": [document["clips"][0] | fields, *document["clips"][1:]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: changed(document, split="test"), "voice low speaks in train and in test"),
        (lambda document: changed(document, samples="many"), "samples of .* is 'many'"),
        (lambda document: changed(document, samples=True), "samples of .* is True"),
        (lambda document: changed(document, colour="red"), "colour"),
        (lambda document: {**document, "format": 2}, "of format 2, this version reads 1"),
        (lambda document: {"format": 1}, "KeyError"),
        (lambda document: [document], "not a manifest of speech"),
    ],
)
def test_invalid_manifests_are_refused(tmp_path, change, message):
    write_tones(tmp_path, TEXTS)
    path = tmp_path / MANIFEST
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(DataError, match=message):
        read_spoken_clips(tmp_path, "train")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    write_tones(tmp_path_factory.mktemp("speech"), TEXTS[:1])
    return (tmp_path_factory.getbasetemp() / "speech0" / MANIFEST).read_bytes()


@given(place=st.floats(0, 1), byte=st.integers(0, 255))
@settings(max_examples=50, deadline=None)
def test_a_damaged_manifest_is_read_or_refused(manifest, tmp_path_factory, place, byte):
    folder = tmp_path_factory.mktemp("damaged")
    at = int(place * (len(manifest) - 1))
    (folder / MANIFEST).write_bytes(manifest[:at] + bytes([byte]) + manifest[at + 1 :])
    try:
        clips = read_spoken_clips(folder, "train")
    except DataError as error:
        assert MANIFEST in str(error)
    else:
        assert clips
