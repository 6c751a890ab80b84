"""Audio files of any common format: decoding to mono sound of 16 kHz, and lengths from headers alone.

Lengths are read when a sample is planned, sound when it is loaded (`data.samples.audio_format`).
"""

import contextlib
import functools
import io
import logging
import re
import typing
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float32

from data.errors import BadSampleError
from data.extras import missing_extra
from data.media.decoding import UntilItFails, decoding
from data.media.sound.mel import SAMPLE_RATE
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
_UNKNOWN_SAMPLES = 2**63 - 1  # libsndfile's number for a FLAC whose header has none
# The tag in the first frame of an MP3 that has the number of frames (bit 0 of the flags).
_MP3_LENGTH = re.compile(rb"(?:Xing|Info)...(.)", re.DOTALL)
_OUT_OF_MEMORY = 17  # libsndfile's SFE_MALLOC_FAILED
_MAX_MP3_FRAME = 2881  # bytes: MPEG-2 at 160 kbit/s and 8 kHz, with padding
_UNKNOWN_SIZE = 0x7FFFFFFF  # sizes from here on are placeholders of programs that could not seek back
_MAX_OGG_PAGE = 27 + 255 + 255 * 255  # bytes: header, segment table, segments


def read_audio(media: Media) -> Float32[np.ndarray, " samples"]:
    """Decodes a clip to mono sound of 16 kHz in about [-1, 1]: channels are averaged, then resampled.

    The result has `audio_length(media)` samples.

    Raises:
        BadSampleError: The file is missing, truncated, not of `AUDIO_FORMATS`, empty, longer than `MAX_SAMPLES`, of a
            sample rate outside [MIN_SAMPLE_RATE, MAX_SAMPLE_RATE], or has samples that are not finite. Truncation is
            not detected in an MP3 without a Xing or Info tag, a FLAC without a length, nor an Ogg file cut exactly
            between two pages.
    """
    with _open_audio(media) as (file, announced), np.errstate(all="ignore"):
        mono = np.concatenate([block.mean(axis=1) for block in _read_blocks(file, media)])
        if announced and len(mono) != announced:
            raise BadSampleError(media.where, f"{len(mono)} of {announced} samples are there: the file is truncated")
        if file.samplerate != SAMPLE_RATE:
            _log_resampling(file.samplerate)
        waveform = mono if file.samplerate == SAMPLE_RATE else soxr.resample(mono, file.samplerate, SAMPLE_RATE)
        length = _resampled_length(len(mono), file.samplerate)
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
    """Number of samples that `read_audio` returns: the file's, scaled to 16 kHz and rounded up.

    It is in the header, but for an MP3 without a Xing or Info tag and a FLAC of unknown length: these are decoded.

    Raises:
        BadSampleError: The header shows that `read_audio` would raise for the file.
    """
    with _open_audio(media) as (file, announced):
        return _resampled_length(announced or sum(map(len, _read_blocks(file, media))), file.samplerate)


def _resampled_length(samples: int, rate: int) -> int:
    return -(-samples * SAMPLE_RATE // rate)


class _Sequential(soundfile.SoundFile):
    """A file that is read from its beginning to its end: no seek, which fails where the length is unknown."""

    def seekable(self) -> bool:
        return False


class _Longer(io.BytesIO):
    """Bytes that claim to be more: libsndfile estimates the length of an MP3 by their number and reads no further.

    No frame has fewer than 8 kbit/s and none more than 320, so the first one misleads by a factor of 40 at most.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if (offset, whence) == (0, io.SEEK_END):
            return super().seek(40 * super().seek(0, io.SEEK_END))
        return super().seek(offset, whence)  # a tag is looked for 128 bytes before the true end


@contextlib.contextmanager
def _open_audio(media: Media) -> Iterator[tuple[soundfile.SoundFile, int | None]]:
    """Opens a clip whose header is valid, with the number of samples, None where the header does not have it.

    Errors inside the context are raised as by `decoding`.
    """
    with contextlib.ExitStack() as opened:
        stream = opened.enter_context(decoding(media, _explain))
        try:
            file = opened.enter_context(_Sequential(typing.cast(typing.BinaryIO, UntilItFails(stream))))
        except soundfile.LibsndfileError as error:
            if error.code == _OUT_OF_MEMORY:
                raise MemoryError from error
            raise
        announced = file.frames if _has_length(file, stream) else None
        if announced is None and file.format == "MP3":
            file = opened.enter_context(_Sequential(_Longer(media.read())))
        reason = _header_fault(file, stream, announced)
        if reason:
            raise BadSampleError(media.where, reason)
        yield file, announced


def _explain(error: Exception) -> str:
    if not isinstance(error, soundfile.LibsndfileError):
        return ""
    return f"{error.error_string.rstrip('.')}; read are {', '.join(AUDIO_FORMATS)}"


def _has_length(file: soundfile.SoundFile, stream: io.BufferedReader | io.BytesIO) -> bool:
    """Whether the number of samples is the header's; of an MP3 without one, libsndfile estimates it from its size."""
    if file.format != "MP3":
        return file.frames != _UNKNOWN_SAMPLES
    position = stream.tell()
    first = _after_id3_tags(stream)
    stream.seek(position)
    tag = _MP3_LENGTH.search(first)
    return tag is not None and bool(tag[1][0] & 1)


def _after_id3_tags(stream: io.BufferedReader | io.BytesIO) -> bytes:
    """The bytes of the first frame of an MP3, behind ID3v2 tags (header of ten bytes, size in digits of seven bits)."""
    start = 0
    while True:
        stream.seek(start)
        head = stream.read(_MAX_MP3_FRAME)
        if not head.startswith(b"ID3") or len(head) < 10:
            return head
        start += 10 + sum(digit << shift for digit, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))


def _header_fault(file: soundfile.SoundFile, stream: io.BufferedReader | io.BytesIO, announced: int | None) -> str:
    """Description of the fault that the header shows; empty for a valid header."""
    if file.format not in AUDIO_FORMATS:
        return f"{file.format} is none of {', '.join(AUDIO_FORMATS)}"
    if not MIN_SAMPLE_RATE <= file.samplerate <= MAX_SAMPLE_RATE:
        return f"a sample rate of {file.samplerate} Hz is outside [{MIN_SAMPLE_RATE}, {MAX_SAMPLE_RATE}]"
    if announced and announced > MAX_SAMPLES:
        return f"{announced} samples are more than {MAX_SAMPLES}"
    for expected, actual in _SHORT_DATA.findall(file.extra_info):
        if int(actual) < int(expected) < _UNKNOWN_SIZE:
            return f"{actual} of {expected} bytes are there: the file is truncated"
    if file.format == "OGG" and not _ends_with_whole_ogg_page(stream):
        return "the last Ogg page is truncated"
    return "it has no samples" if announced is not None and announced < 1 else ""


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


def _read_blocks(file: soundfile.SoundFile, media: Media) -> Iterator[Float32[np.ndarray, "samples channels"]]:
    """Reads the samples in blocks, so that a header that announces too many costs no memory."""
    total = 0
    while len(block := file.read(_BLOCK_SAMPLES, dtype="float32", always_2d=True)):
        total += len(block)
        if total > MAX_SAMPLES:
            raise BadSampleError(media.where, f"its samples are more than {MAX_SAMPLES}")
        yield block
    if not total:
        raise BadSampleError(media.where, "it has no samples")
