import fractions
import io

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import BadSampleError
from data.media.sound.audio import MAX_SAMPLES, audio_length, read_audio
from data.media.sound.mel import MAX_CHUNK_SAMPLES, SAMPLE_RATE, split_into_chunks
from data.records import Media
from tests.data.damage import damaged
from tests.data.real_data import speech_files

LOSSLESS = [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAVEX", "PCM_24"), ("FLAC", "PCM_16")]
LOSSY = [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]


def tone(seconds, rate, hertz=440.0, loudness=0.3):
    return (loudness * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encoded(samples, rate, form="WAV", subtype="FLOAT"):
    """The samples as a file of that format in memory."""
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=form, subtype=subtype)
    return Media(where=f"a.{form.lower()}", content=stream.getvalue())


def read_both(media):
    """The waveform; the header must have promised its length."""
    waveform = read_audio(media)
    assert audio_length(media) == len(waveform)
    assert waveform.dtype == np.float32
    return waveform


def test_resampling_is_logged_once_per_rate(caplog):
    for rate in (SAMPLE_RATE, 11_111, 22_222, 11_111):
        read_audio(encoded(tone(0.1, rate), rate))
    assert [record.getMessage() for record in caplog.records] == [
        f"clips of {rate} Hz are resampled to 16000 Hz" for rate in (11_111, 22_222)
    ]


@pytest.mark.parametrize(("form", "subtype"), LOSSLESS)
def test_lossless_formats_at_16_khz_are_read_unchanged(form, subtype):
    waveform = tone(0.1, SAMPLE_RATE)
    np.testing.assert_allclose(read_both(encoded(waveform, SAMPLE_RATE, form, subtype)), waveform, atol=1e-4)


@pytest.mark.parametrize(("form", "subtype"), LOSSY)
def test_lossy_formats_keep_a_tone(form, subtype):
    waveform = tone(0.5, SAMPLE_RATE)
    read = read_both(encoded(waveform, SAMPLE_RATE, form, subtype))
    assert len(read) == len(waveform)
    assert np.abs(read - waveform)[1000:-1000].max() < 0.05


def test_real_speech_at_16_khz_is_read_unchanged():
    for path in speech_files():
        waveform, rate = soundfile.read(path, dtype="float32")
        assert rate == SAMPLE_RATE
        np.testing.assert_array_equal(read_both(Media.from_file(path)), waveform)


@pytest.mark.parametrize("rate", [4000, 8000, 11_025, 22_050, 44_100, 48_000, 96_000, 191_999, 192_000])
def test_every_sample_rate_is_resampled_to_16_khz(rate):
    read = read_both(encoded(tone(0.5, rate), rate))
    assert len(read) == -(-round(0.5 * rate) * SAMPLE_RATE // rate)
    middle = slice(1000, 7000)
    np.testing.assert_allclose(read[middle], tone(0.5, SAMPLE_RATE)[middle], atol=2e-3)


def test_frequencies_above_8_khz_are_filtered_out():
    above = read_both(encoded(tone(0.5, 48_000, hertz=11_000.0), 48_000))
    assert np.abs(above[1000:7000]).max() < 1e-3


def test_channels_are_averaged():
    left, right = tone(0.1, SAMPLE_RATE), tone(0.1, SAMPLE_RATE, 990.0)
    np.testing.assert_allclose(
        read_both(encoded(np.stack([left, right], 1), SAMPLE_RATE)), (left + right) / 2, atol=1e-7
    )


def test_a_range_of_a_file_is_read(tmp_path):
    media = encoded(tone(0.1, SAMPLE_RATE), SAMPLE_RATE, "FLAC", "PCM_16")
    (tmp_path / "a.tar").write_bytes(b"before" + media.content + b"after")
    member = Media(where="a.tar!a", path=str(tmp_path / "a.tar"), offset=6, size=len(media.content))
    np.testing.assert_array_equal(read_both(member), read_both(media))


@given(st.integers(1, 4000), st.integers(400, 19_200), st.sampled_from([*LOSSLESS, LOSSY[0]]))
@settings(max_examples=60, deadline=None)
def test_length_from_the_header_is_that_of_the_waveform(samples, tens, form):
    rate = 10 * tens  # FLAC knows no others above 65,535 Hz
    assert len(read_both(encoded(tone(1, 4000)[:samples], rate, *form))) == -(-samples * SAMPLE_RATE // rate)


def flac_announcing(samples, seconds=0.1):
    """A FLAC whose header promises another number of samples (36 bits from byte 21 on)."""
    content = bytearray(encoded(tone(seconds, SAMPLE_RATE), SAMPLE_RATE, "FLAC", "PCM_16").content)
    content[21] = content[21] & 0xF0 | samples >> 32
    content[22:26] = (samples & 0xFFFFFFFF).to_bytes(4, "big")
    return Media(where="lying", content=bytes(content))


@pytest.mark.parametrize(
    ("media", "reason"),
    [
        (encoded(tone(0.1, 3999), 3999), "a sample rate of 3999 Hz is outside"),
        (encoded(tone(0.1, SAMPLE_RATE), 400_000), "a sample rate of 400000 Hz is outside"),
        (encoded(np.zeros(0, np.float32), SAMPLE_RATE), "no samples"),
        (encoded(tone(0.1, SAMPLE_RATE), SAMPLE_RATE, "AIFF", "PCM_16"), "AIFF is none of WAV"),
        (flac_announcing(MAX_SAMPLES + 1), f"{MAX_SAMPLES + 1} samples are more than"),
        (Media(where="empty"), "Format not recognised"),
        (
            Media(where="words", content=b"not a sound" * 20),
            "Format not recognised; read are WAV, WAVEX",
        ),
        (Media.from_file("/nowhere/a.wav"), "No such file"),
    ],
    ids=["slow", "fast", "no sample", "AIFF", "long", "empty", "words", "missing"],
)
@pytest.mark.parametrize("reader", [read_audio, audio_length])
def test_invalid_headers_are_refused_by_both_readers(media, reason, reader):
    with pytest.raises(BadSampleError, match=reason) as error:
        reader(media)
    assert error.value.where == media.where


@pytest.mark.parametrize("rate", [SAMPLE_RATE, 44_100])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_that_are_not_finite_are_refused(rate, bad, channels):
    samples = np.stack([tone(0.1, rate)] * channels, axis=1)
    samples[77, -1] = bad
    with pytest.raises(BadSampleError, match="some samples are not finite"):
        read_audio(encoded(samples, rate))


@pytest.mark.parametrize(("form", "subtype"), [*LOSSLESS, *LOSSY])
@pytest.mark.parametrize("missing", [1, 2, 900])
def test_truncated_files_are_refused(form, subtype, missing):
    media = encoded(tone(2, SAMPLE_RATE), SAMPLE_RATE, form, subtype)
    with pytest.raises(BadSampleError):
        read_audio(Media(where="cut", content=media.content[:-missing]))


def test_a_header_that_announces_too_many_samples_is_refused():
    with pytest.raises(BadSampleError):
        read_audio(flac_announcing(MAX_SAMPLES))


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF])
def test_streamed_wav_files_of_unknown_size_are_read(size):
    media = encoded(tone(0.1, SAMPLE_RATE), SAMPLE_RATE, "WAV", "PCM_16")
    content = bytearray(media.content)
    content[4:8] = size.to_bytes(4, "little")
    start = content.index(b"data") + 4
    content[start : start + 4] = size.to_bytes(4, "little")
    np.testing.assert_array_equal(read_both(Media(where="streamed", content=bytes(content))), read_both(media))


def test_flac_files_of_unknown_length_are_read():
    whole = read_both(encoded(tone(0.1, SAMPLE_RATE), SAMPLE_RATE, "FLAC", "PCM_16"))
    np.testing.assert_array_equal(read_both(flac_announcing(0)), whole)
    longer = flac_announcing(0, seconds=20.0)  # more than a block
    assert len(read_both(longer)) == 20 * SAMPLE_RATE


def mp3(seconds, rate, *, tag, id3=b"", options=None):
    """An MP3 as FFmpeg writes it, with or without the Info tag."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp3", options={"write_xing": str(int(tag)), "id3v2_version": "0"}) as container:
        stream = container.add_stream("libmp3lame", rate=rate, options=options or {})
        samples = (tone(seconds, rate) * 32767).astype(np.int16)
        for start in range(0, len(samples), 1152):
            frame = av.AudioFrame.from_ndarray(samples[None, start : start + 1152], format="s16p", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, start, fractions.Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return Media(where="a.mp3", content=id3 + file.getvalue())


def decoded_samples(media):
    """The number of samples that FFmpeg decodes."""
    with av.open(io.BytesIO(media.content)) as container:
        return sum(frame.samples for frame in container.decode(audio=0))


def id3(size):
    """An ID3v2.3 tag with a comment of that many bytes."""
    frame = b"COMM" + size.to_bytes(4, "big") + b"\0\0" + b"\0eng\0" + b"x" * (size - 5)
    return b"ID3\3\0\0" + bytes(len(frame) >> shift & 127 for shift in (21, 14, 7, 0)) + frame


@pytest.mark.parametrize("rate", [16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("tags", [b"", id3(300), id3(60_000), id3(300) + id3(300)], ids=["no", "small", "large", "two"])
@pytest.mark.parametrize("tag", [True, False], ids=["Info", "no Info"])
@pytest.mark.parametrize("options", [{}, {"q": "4", "flags": "+qscale"}], ids=["constant", "variable"])
def test_mp3_files_are_as_long_as_their_frames(rate, tags, tag, options):
    media = mp3(1.3, rate, tag=tag, id3=tags, options=options)
    samples = decoded_samples(media)
    if tag:
        assert samples == round(1.3 * rate)  # without what the encoder adds
    assert len(read_both(media)) == -(-samples * SAMPLE_RATE // rate)


def test_an_mp3_without_a_length_is_decoded_as_ffmpeg_does():
    media = mp3(1.3, SAMPLE_RATE, tag=False, options={"q": "4", "flags": "+qscale"})  # libsndfile guesses a third
    with av.open(io.BytesIO(media.content)) as container:
        expected = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    np.testing.assert_allclose(read_both(media), expected, atol=1e-6)
    tagged = Media(where="ID3v1", content=media.content + b"TAG" + b"x" * 125)
    np.testing.assert_array_equal(read_both(tagged), read_both(media))


@pytest.mark.parametrize("reader", [read_audio, audio_length])
def test_the_refusal_of_m4a_names_the_formats_that_are_read(reader):
    file = io.BytesIO()
    with av.open(file, "w", format="ipod") as container:
        stream = container.add_stream("aac", rate=SAMPLE_RATE)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = SAMPLE_RATE
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(BadSampleError, match=r"a\.m4a cannot be read .*read are WAV, WAVEX, FLAC, OGG, MP3"):
        reader(Media("a.m4a", content=file.getvalue()))


def test_an_mp3_with_fewer_frames_than_its_info_tag_says_is_refused():
    media = mp3(2.0, 44_100, tag=True, id3=id3(300))
    with pytest.raises(BadSampleError, match="samples are there: the file is truncated"):
        read_audio(Media(where="cut", content=media.content[: len(media.content) // 2]))


def is_accepted(content):
    """Whether a clip can be read; no other error than BadSampleError comes out, and header and waveform agree."""
    media = Media(where="fuzzed", content=content)
    try:
        samples = audio_length(media)
    except BadSampleError:
        with pytest.raises(BadSampleError):
            read_audio(media)
        return False
    assert samples > 0
    try:
        waveform = read_audio(media)
    except BadSampleError as error:
        assert error.where == "fuzzed"
        return False
    assert len(waveform) == samples
    assert np.isfinite(waveform).all()
    return True


FILES = [encoded(tone(0.3, 22_050), 22_050, *form).content for form in [*LOSSLESS, *LOSSY[:1], *LOSSY[2:]]]


def test_damaged_files_give_a_waveform_or_bad_sample_error():
    accepted = []

    @given(data=st.data())
    @settings(max_examples=120, deadline=None)
    def check(data):
        accepted.append(is_accepted(damaged(data, data.draw(st.sampled_from(FILES)))))

    check()
    assert 0 < sum(accepted) < len(accepted)


@given(st.binary(max_size=200), st.sampled_from([b"", b"RIFF\0\0\1\0WAVEfmt ", b"fLaC", b"OggS", b"ID3", b"\xff\xfb"]))
@settings(max_examples=80, deadline=None)
def test_arbitrary_bytes_give_a_waveform_or_bad_sample_error(content, start):
    is_accepted(start + content)


@given(st.integers(0, 10 * MAX_CHUNK_SAMPLES))
@settings(max_examples=100, deadline=None)
def test_chunks_cover_the_clip_evenly(samples):
    pieces = split_into_chunks(samples)
    assert [number for piece in pieces for number in (piece.start, piece.stop)] == sorted(
        number for piece in pieces for number in (piece.start, piece.stop)
    )
    assert sum(map(len, pieces)) == samples
    assert all(earlier.stop == later.start for earlier, later in zip(pieces, pieces[1:], strict=False))
    assert len(pieces) == -(-samples // MAX_CHUNK_SAMPLES)
    assert all(0 < len(piece) <= MAX_CHUNK_SAMPLES for piece in pieces)
    assert max(map(len, pieces), default=0) - min(map(len, pieces), default=0) <= 1
