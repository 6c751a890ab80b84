"""The context in which a media file is decoded; it raises no errors but BadSampleError and HostError.

Images, video and audio files are decoded within it.
"""

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

from data.errors import BadSampleError
from data.host_faults import bad_sample
from data.records import Media, MediaFile


@contextlib.contextmanager
def decoding(media: Media, explain: Callable[[Exception], str]) -> Iterator[io.BufferedReader | io.BytesIO]:
    """Opens a file for a library that decodes it.

    Decoders take a read that failed for the end of the file, and a damaged header leads them to any error at all. So a
    failed read decides, whatever the library made of it, and any other exception is blamed on the content unless it
    tells of the host.

    Args:
        media: The file.
        explain: Describes the fault of the content, from an exception of the library; empty for the exception's text.

    Raises:
        BadSampleError: The content cannot be decoded.
        HostError: The host failed.
    """
    with media.open() as stream:
        try:
            yield stream
        except Exception as error:
            _raise_failed_read(media, stream)
            if isinstance(error, BadSampleError):
                raise
            raise bad_sample(media.where, error, explain(error)) from error
        _raise_failed_read(media, stream)


class UntilItFails:
    """A stream that ends where a read fails, as `decoding` knows, for libraries whose callbacks print exceptions."""

    def __init__(self, stream: io.BufferedReader | io.BytesIO) -> None:
        self._stream, self.seek, self.tell = stream, stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        """Reads so many bytes, fewer at the end."""
        try:
            return self._stream.read(size)
        except OSError:
            return b""

    def readinto(self, buffer: Any) -> int:
        """Fills a buffer and returns the number of bytes read."""
        try:
            return self._stream.readinto(buffer)
        except OSError:
            return 0


def _raise_failed_read(media: Media, stream: io.BufferedReader | io.BytesIO) -> None:
    raw = stream.raw if isinstance(stream, io.BufferedReader) else None
    if isinstance(raw, MediaFile) and raw.failed is not None:
        raise bad_sample(media.where, raw.failed, raw.failed.strerror or "") from raw.failed
