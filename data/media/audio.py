"""Clips of any file to mono sound of 16 kHz, and their lengths from the header alone."""

import contextlib
import functools
import io
import logging
import re
from collections.abc import Iterator

import numpy as np
import soundfile
import soxr
from jaxtyping import Float32

from data.errors import BadSampleError
from data.records import Media

_LOG = logging.getLogger(__name__)

SAMPLE_RATE = 16_000
MAX_CHUNK_SAMPLES = 30 * SAMPLE_RATE  # what Whisper's encoder was trained on

# The formats that data sets hold.
AUDIO_FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")
# Below telephone sound, or above any recorder: the header is damaged.
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 4_000, 192_000
# At the file's own rate: 1 GiB of float32, 4.6 hours at 16 kHz.
MAX_SAMPLES = 2**28

_BLOCK = 2**18
# What libsndfile notes where a WAV file is shorter than it says.
_SHORT_DATA = re.compile(r"^\s*data : (\d+) \(should be (\d+)\)", re.MULTILINE)
_UNKNOWN_SIZE = 0x7FFFFFFF  # and above: written by a program that could not seek back to fill it in
_OGG_PAGE = 27 + 255 + 255 * 255  # the largest page in bytes: header, table of segments, segments


def read_audio(media: Media) -> Float32[np.ndarray, " samples"]:
    """Decodes a clip to mono sound of 16 kHz, in [-1, 1] or a little outside: channels averaged, then resampled.

    As many samples as `clip_samples` says.

    Raises:
        BadSampleError: Missing, cut, not of `FORMATS`, without a sample, of more than `MOST_SAMPLES`, of a sample rate
            outside [LEAST_RATE, MOST_RATE], or with samples that are no finite numbers. A cut is not seen in an MP3
            without a Xing header, nor in an Ogg that is cut exactly between two pages.
    """
    with _opened(media) as file, np.errstate(all="ignore"):
        mono = np.concatenate([np.zeros(0, np.float32), *(block.mean(axis=1) for block in _blocks(file))])
        if len(mono) != file.frames:
            raise BadSampleError(media.where, f"{len(mono)} of {file.frames} samples are there: the file is cut")
        if file.samplerate != SAMPLE_RATE:
            _tell_of_resampling(file.samplerate)
        waveform = mono if file.samplerate == SAMPLE_RATE else soxr.resample(mono, file.samplerate, SAMPLE_RATE)
        length = _resampled(file.frames, file.samplerate)
        # The resampler rounds the length its own way; the header's formula rules.
        waveform = np.pad(waveform[:length], (0, max(0, length - len(waveform))))
        if not np.isfinite(waveform).all():
            raise BadSampleError(media.where, "samples that are no finite numbers")
        return waveform


@functools.cache
def _tell_of_resampling(rate: int) -> None:
    """Once a rate and process: a data set of another rate is no error, but people should know."""
    _LOG.warning("clips of %d Hz are resampled to %d Hz", rate, SAMPLE_RATE)


def audio_length(media: Media) -> int:
    """Samples that `read_clip` gives, from the header: those of the file, scaled to 16 kHz and rounded up.

    Raises:
        BadSampleError: The header alone shows that `read_clip` would refuse it.
    """
    with _opened(media) as file:
        return _resampled(file.frames, file.samplerate)


def split_into_chunks(samples: int) -> list[range]:
    """Ranges of samples, one after the other, of at most 30 s: the fewest, and of even lengths.

    Even, because a remnant of a few samples would be an encoder's clip of its own.

    Args:
        samples: Length of the clip at 16 kHz.
    """
    pieces = -(-samples // MAX_CHUNK_SAMPLES)
    return [range(samples * piece // pieces, samples * (piece + 1) // pieces) for piece in range(pieces)]


def _resampled(samples: int, rate: int) -> int:
    return -(-samples * SAMPLE_RATE // rate)


@contextlib.contextmanager
def _opened(media: Media) -> Iterator[soundfile.SoundFile]:
    """The clip with its header read and found to be sound; whatever fails inside becomes BadSampleError."""
    try:
        with media.open() as stream, soundfile.SoundFile(stream) as file:
            reason = _fault(file, stream)
            if reason:
                raise BadSampleError(media.where, reason)
            yield file
    except BadSampleError:
        raise
    except soundfile.LibsndfileError as error:
        raise BadSampleError(media.where, error.error_string) from error
    # A damaged header leads to others: MemoryError, ValueError, a size that is no integer of C.
    except Exception as error:
        raise BadSampleError(media.where, f"{type(error).__name__}: {error}") from error


def _fault(file: soundfile.SoundFile, stream: io.BufferedIOBase) -> str:
    """What the header shows to be wrong; empty where nothing is."""
    if file.format not in AUDIO_FORMATS:
        return f"{file.format} is none of {', '.join(AUDIO_FORMATS)}"
    if not MIN_SAMPLE_RATE <= file.samplerate <= MAX_SAMPLE_RATE:
        return f"a sample rate of {file.samplerate} Hz is outside [{MIN_SAMPLE_RATE}, {MAX_SAMPLE_RATE}]"
    if file.frames > MAX_SAMPLES:
        return f"{file.frames} samples are more than {MAX_SAMPLES}"
    for promised, found in _SHORT_DATA.findall(file.extra_info):
        if int(found) < int(promised) < _UNKNOWN_SIZE:
            return f"{found} of {promised} bytes are there: the file is cut"
    if file.format == "OGG" and not _ends_with_a_page(stream):
        return "the last Ogg page is cut"
    return "" if file.frames > 0 else "no sample"


def _ends_with_a_page(stream: io.BufferedIOBase) -> bool:
    """Whether an Ogg's last page (RFC 3533, section 6) is whole; libsndfile leaves a cut one out in silence."""
    here = stream.tell()
    end = stream.seek(0, 2)
    stream.seek(max(0, end - _OGG_PAGE))
    tail = stream.read()
    stream.seek(here)
    page = tail.rfind(b"OggS")
    if page < 0 or len(tail) < page + 27:
        return False
    table = tail[page + 27 : page + 27 + tail[page + 26]]
    return len(tail) >= page + 27 + tail[page + 26] + sum(table)


def _blocks(file: soundfile.SoundFile) -> Iterator[Float32[np.ndarray, "samples channels"]]:
    """The samples block by block, so that a header that promises too much costs no memory."""
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        yield block
