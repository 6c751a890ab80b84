import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.media.sound.mel import HOP_LENGTH, MAX_CHUNK_SAMPLES, frame_count, log_mel
from tests.data.media import whisper_reference
from tests.data.real_data import speech_files

SIGNALS = whisper_reference.synthetic()
# The issue asks for 1e-4; what is measured is 1.2e-7.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def reference():
    with np.load(whisper_reference.FILE) as stored:
        return dict(stored)


@pytest.mark.parametrize("name", SIGNALS)
def test_synthetic_signals_match_whisper(reference, name):
    features = log_mel(SIGNALS[name])[whisper_reference.FRAMES[name]]
    np.testing.assert_allclose(features, reference[f"{name}_80"], atol=TOLERANCE)


def test_128_bands_match_whisper(reference):
    features = log_mel(SIGNALS["sweep"], mels=128)[whisper_reference.FRAMES["sweep"]]
    np.testing.assert_allclose(features, reference["sweep_128"], atol=TOLERANCE)


def test_real_speech_matches_whisper(reference):
    assert whisper_reference.SPEECH in speech_files()
    features = log_mel(whisper_reference.speech())[whisper_reference.FRAMES["speech"]]
    np.testing.assert_allclose(features, reference["speech_80"], atol=TOLERANCE)


def test_stored_features_belong_to_the_current_signals(reference):
    assert str(reference["source"]).startswith("transformers ")
    stored = {name.rsplit("_", 1)[0] for name in reference if name != "source"}
    assert stored == set(whisper_reference.FRAMES)


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_padding_with_zeros_changes_no_frame(samples, padding, multiple):
    waveform = SIGNALS["sweep"][:samples]
    alone = log_mel(waveform, multiple=multiple)
    padded = log_mel(np.pad(waveform, (0, padding)))
    assert (len(alone), alone.dtype) == (frame_count(len(waveform), multiple), np.float32)
    shared = min(len(alone), len(padded))
    np.testing.assert_allclose(alone[:shared], padded[:shared], atol=1e-6)


@given(st.integers(1, MAX_CHUNK_SAMPLES), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_frames_cover_the_clip(samples, multiple):
    frames = frame_count(samples, multiple)
    assert frames % multiple == 0
    assert (frames - multiple) * HOP_LENGTH < samples <= frames * HOP_LENGTH


def test_a_full_window_at_a_multiple_that_does_not_divide_it():
    features = log_mel(SIGNALS["full_window"], multiple=14)
    assert len(features) == 3010
    np.testing.assert_array_equal(features[:3000], log_mel(SIGNALS["full_window"]))
    np.testing.assert_array_equal(features[3000:], features.min())


def test_silence_is_flat():
    np.testing.assert_allclose(log_mel(np.zeros(1000, np.float32)), -1.5, atol=1e-6)


@pytest.mark.parametrize("samples", [0, MAX_CHUNK_SAMPLES + 1])
def test_empty_and_too_long_chunks_are_refused(samples):
    with pytest.raises(DataError, match=f"a clip of {samples} samples; split it"):
        log_mel(np.zeros(samples, np.float32))
