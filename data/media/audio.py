"""Audio files of any common format: decoding to mono sound of 16 kHz, and lengths from headers alone."""

import contextlib
import functools
import io
import logging
import re
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float32

from data.errors import BadSampleError
from data.extras import missing_extra
from data.media.mel import SAMPLE_RATE
from data.records import Media

try:
    import soundfile
    import soxr
except ImportError as error:
    raise missing_extra("decoding audio", "audio", error) from error

_LOG = logging.getLogger(__name__)

AUDIO_FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")
"""Names of libsndfile's formats that are read."""

MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 4_000, 192_000
"""Sample rates in Hz, from below telephone sound to above any recorder; beyond them the header is damaged."""

MAX_SAMPLES = 2**28
"""At the file's own rate: 1 GiB of float32, 4.6 hours at 16 kHz."""

_BLOCK_SAMPLES = 2**18
# libsndfile logs this line where a WAV file is shorter than its header says.
_SHORT_DATA = re.compile(r"^\s*data : (\d+) \(should be (\d+)\)", re.MULTILINE)
_UNKNOWN_SIZE = 0x7FFFFFFF  # sizes from here on are placeholders of programs that could not seek back
_MAX_OGG_PAGE = 27 + 255 + 255 * 255  # bytes: header, segment table, segments


def read_audio(media: Media) -> Float32[np.ndarray, " samples"]:
    """Decodes a clip to mono sound of 16 kHz in about [-1, 1]: channels are averaged, then resampled.

    The result has `audio_length(media)` samples.

    Raises:
        BadSampleError: The file is missing, truncated, not of `AUDIO_FORMATS`, empty, longer than `MAX_SAMPLES`, of a
            sample rate outside [MIN_SAMPLE_RATE, MAX_SAMPLE_RATE], or has samples that are not finite. Truncation is
            not detected in an MP3 without a Xing header, nor in an Ogg file cut exactly between two pages.
    """
    with _open_audio(media) as file, np.errstate(all="ignore"):
        mono = np.concatenate([np.zeros(0, np.float32), *(block.mean(axis=1) for block in _read_blocks(file))])
        if len(mono) != file.frames:
            raise BadSampleError(media.where, f"{len(mono)} of {file.frames} samples are there: the file is truncated")
        if file.samplerate != SAMPLE_RATE:
            _log_resampling(file.samplerate)
        waveform = mono if file.samplerate == SAMPLE_RATE else soxr.resample(mono, file.samplerate, SAMPLE_RATE)
        length = _resampled_length(file.frames, file.samplerate)
        # The resampler rounds the length differently; the header's formula decides.
        waveform = np.pad(waveform[:length], (0, max(0, length - len(waveform))))
        if not np.isfinite(waveform).all():
            raise BadSampleError(media.where, "some samples are not finite")
        return waveform


@functools.cache
def _log_resampling(rate: int) -> None:
    """Logs once for each rate and process that clips are resampled."""
    _LOG.warning("clips of %d Hz are resampled to %d Hz", rate, SAMPLE_RATE)


def audio_length(media: Media) -> int:
    """Number of samples that `read_audio` returns, from the header: the file's, scaled to 16 kHz and rounded up.

    Raises:
        BadSampleError: The header shows that `read_audio` would raise for the file.
    """
    with _open_audio(media) as file:
        return _resampled_length(file.frames, file.samplerate)


def _resampled_length(samples: int, rate: int) -> int:
    return -(-samples * SAMPLE_RATE // rate)


@contextlib.contextmanager
def _open_audio(media: Media) -> Iterator[soundfile.SoundFile]:
    """Opens a clip whose header is valid; every error inside the context becomes BadSampleError."""
    try:
        with media.open() as stream, soundfile.SoundFile(stream) as file:
            reason = _header_fault(file, stream)
            if reason:
                raise BadSampleError(media.where, reason)
            yield file
    except BadSampleError:
        raise
    except soundfile.LibsndfileError as error:
        raise BadSampleError(media.where, error.error_string) from error
    # A damaged header leads to others: MemoryError, ValueError, a size that no C integer holds.
    except Exception as error:
        raise BadSampleError(media.where, f"{type(error).__name__}: {error}") from error


def _header_fault(file: soundfile.SoundFile, stream: io.BufferedReader | io.BytesIO) -> str:
    """What the header shows to be wrong; empty for a valid one."""
    if file.format not in AUDIO_FORMATS:
        return f"{file.format} is none of {', '.join(AUDIO_FORMATS)}"
    if not MIN_SAMPLE_RATE <= file.samplerate <= MAX_SAMPLE_RATE:
        return f"a sample rate of {file.samplerate} Hz is outside [{MIN_SAMPLE_RATE}, {MAX_SAMPLE_RATE}]"
    if file.frames > MAX_SAMPLES:
        return f"{file.frames} samples are more than {MAX_SAMPLES}"
    for expected, actual in _SHORT_DATA.findall(file.extra_info):
        if int(actual) < int(expected) < _UNKNOWN_SIZE:
            return f"{actual} of {expected} bytes are there: the file is truncated"
    if file.format == "OGG" and not _ends_with_whole_ogg_page(stream):
        return "the last Ogg page is truncated"
    return "" if file.frames > 0 else "it has no samples"


def _ends_with_whole_ogg_page(stream: io.BufferedReader | io.BytesIO) -> bool:
    """Whether the last page of an Ogg file (RFC 3533, section 6) is complete; libsndfile silently drops others."""
    position = stream.tell()
    end = stream.seek(0, 2)
    stream.seek(max(0, end - _MAX_OGG_PAGE))
    tail = stream.read()
    stream.seek(position)
    page = tail.rfind(b"OggS")
    if page < 0 or len(tail) < page + 27:
        return False
    segment_table = tail[page + 27 : page + 27 + tail[page + 26]]
    return len(tail) >= page + 27 + tail[page + 26] + sum(segment_table)


def _read_blocks(file: soundfile.SoundFile) -> Iterator[Float32[np.ndarray, "samples channels"]]:
    """Reads the samples in blocks, so that a header that announces too many costs no memory."""
    while len(block := file.read(_BLOCK_SAMPLES, dtype="float32", always_2d=True)):
        yield block
