"""Video files of common formats: headers, and exact frames by time, for any order and spacing of frames in the file.

`data.samples.video_clips` reads the header when a sample is planned, and the frames when it is loaded.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from data.errors import BadSampleError
from data.extras import missing_extra
from data.media.clips.video_sampling import VideoHeader
from data.media.decoding import UntilItFails, decoding
from data.media.images import MAX_PIXELS
from data.records import Media

try:
    import av
    import av.container
    import av.error
    import av.video.stream
except ImportError as error:
    raise missing_extra("decoding video", "video", error) from error

VIDEO_FORMATS = ("mov", "mp4", "matroska", "webm", "avi", "mpegts", "mpeg", "flv", "ogg", "gif")
"""FFmpeg's names of the containers that are read. Others stay disabled: playlists open further files and addresses."""

_OpenVideo = tuple[av.container.InputContainer, av.video.stream.VideoStream]

_TAILS = (1.0, 16.0)  # seconds before the announced end at which the last packets are looked for
_WITHOUT_LENGTH = ("mpegts", "mpeg", "ogg")  # containers whose length FFmpeg finds itself, from their times
_SEEK_SECONDS = 1.0  # frames nearer than this are reached by decoding
_STEPS_BACK = (0.0, 1.0, 4.0, 16.0, 64.0)  # seconds; where a seek lands behind its target, an earlier one is tried


# Names and comments of any encoding are passed over: PyAV below 19 refuses the file otherwise.
_LENIENT: dict[str, Any] = {"metadata_errors": "ignore"} if hasattr(av.container.Container, "metadata_errors") else {}


def read_header(media: Media) -> VideoHeader:
    """The header of a clip: its first frame is decoded, for rotation and time, and its last packets are looked at.

    A header's number of frames includes frames that an edit list hides, and its length may be the length of the sound.
    So the length is the time from the first frame to the end of the last one.

    Raises:
        BadSampleError: The file is missing, not of `VIDEO_FORMATS`, truncated, has no video stream, no frame or no
            frame rate, or has frames of more than `MAX_PIXELS`.
    """
    with _open_video(media) as (container, stream):
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        if not rate:
            raise BadSampleError(media.where, "its video has no frame rate")
        first = next(container.decode(stream), None)
        if first is None:
            raise BadSampleError(media.where, "none of its frames is there: the file is truncated")
        height, width = first.height, first.width
        if _quarter_turns(first) % 2:
            height, width = width, height
        seconds = _end(container, stream, media, rate) - _timestamp(first, media.where) * _time_base(stream)
        return VideoHeader(max(1, round(seconds * rate)), rate, height, width)


def read_frames(media: Media, header: VideoHeader, times: Sequence[float]) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
    """Decodes the frame that is shown at each time, upright.

    A frame is shown from its own time until the time of the next; times count from the first frame of the stream.

    Args:
        media: The file.
        header: The header that `read_header` returned for the file.
        times: Seconds, ascending.

    Raises:
        BadSampleError: Where `read_header` raises it, where the file ends before one of the times, and where the frame
            is damaged or of another size than the first.
    """
    with contextlib.ExitStack() as opened:
        reader = _FrameReader(lambda: opened.enter_context(_open_video(media)), header, media.where)
        for time in times:
            frame = reader.frame_at(time)
            if frame.is_corrupt:
                raise BadSampleError(media.where, f"the frame at {time:.2f} s is damaged")
            pixels = np.rot90(frame.to_ndarray(format="rgb24"), _quarter_turns(frame))
            if pixels.shape[:2] != (header.height, header.width):
                height, width = pixels.shape[:2]
                raise BadSampleError(
                    media.where,
                    f"the frame at {time:.2f} s has {height}x{width} pixels, the first {header.height}x{header.width}",
                )
            yield np.ascontiguousarray(pixels)


class _FrameReader:
    """Decodes forward, and seeks where the next frame that is wanted lies far ahead."""

    def __init__(self, opened: Callable[[], _OpenVideo], header: VideoHeader, where: str) -> None:
        self._open, self._header, self._where = opened, header, where
        self._container, self._stream = opened()
        self._reach = _SEEK_SECONDS  # jumps of less are decoded
        self._gap = 0.0  # seconds between the last two frames
        self._frames = self._decode()
        self._ahead: av.VideoFrame | None = None  # the first frame after the one shown last
        self._shown = self._ahead = self._pull()
        self._start = 0 if self._shown is None else _timestamp(self._shown, where)

    def frame_at(self, time: float) -> av.VideoFrame:
        """The frame that is shown at a time, in seconds, which is no earlier than in the last call."""
        if self._ahead is not None and time - self._time(self._ahead) > self._reach:
            self._seek(time)
        while self._ahead is not None and self._time(self._ahead) <= time:
            self._step()
        if self._shown is None:
            raise BadSampleError(self._where, f"none of its {self._header.frames} frames is there")
        if self._ahead is None and time >= self._end(self._shown):
            raise BadSampleError(
                self._where,
                f"its frames end at {self._end(self._shown):.2f} s where its packets end at "
                f"{self._header.duration:.2f} s: the file is damaged",
            )
        return self._shown

    def _seek(self, time: float) -> None:
        """Moves to a key frame that is shown at the time or before.

        Containers seek by decoding time, so where frames are reordered the key frame found may be shown later. Frames
        that are decoded before the first key frame refer to others that were not decoded, and are passed over.
        """
        before = self._time(self._ahead) if self._ahead is not None else 0.0
        for back in _STEPS_BACK:
            if time - back <= before:
                break
            self._jump(time - back)
            key_frame = self._pull()
            while key_frame is not None and not key_frame.key_frame:
                key_frame = self._pull()
            is_timed = key_frame is not None and (key_frame.dts is not None or not self._is_avi)
            if key_frame is not None and is_timed and self._time(key_frame) <= time:
                if self._time(key_frame) <= before:  # no nearer than decoding would have been
                    self._reach = max(self._reach, 2 * (time - before))
                self._ahead = key_frame
                self._step()
                return
        # Seeking finds no such frame, as in containers without an index: all frames are decoded, from the first.
        self._reach = float("inf")
        self._container, self._stream = self._open()
        self._frames, self._ahead = self._decode(), None
        self._shown = self._ahead = self._pull()

    def _jump(self, time: float) -> None:
        offset = self._start + int(time / float(self._time_base))
        self._container.seek(offset, stream=self._stream, backward=True)
        self._frames = self._decode()

    def _decode(self) -> Iterator[av.VideoFrame]:
        return self._container.decode(self._stream)

    def _step(self) -> None:
        """Shows the next frame."""
        assert self._ahead is not None, "checked by the caller"
        self._shown, self._ahead = self._ahead, self._pull()
        if self._ahead is not None:
            self._gap = self._time(self._ahead) - self._time(self._shown)

    @property
    def _is_avi(self) -> bool:
        return self._container.format.name == "avi"

    def _pull(self) -> av.VideoFrame | None:
        """Decodes the next frame.

        AVI has no times but the order of its packets, which FFmpeg gives reordered frames as the times to show them.
        There, a frame is as late as the packet that completed it, and frames that the decoder gives up at the end,
        without a packet, follow one another.
        """
        frame = next(self._frames, None)
        if frame is not None and self._is_avi:
            if frame.dts is not None:
                frame.pts = frame.dts
            elif self._ahead is not None and self._ahead.pts is not None:
                frame.pts = self._ahead.pts + (frame.duration or 1)
        return frame

    @property
    def _time_base(self) -> float:
        return _time_base(self._stream)

    def _time(self, frame: av.VideoFrame) -> float:
        """Seconds from the first frame until a frame begins to be shown."""
        return (_timestamp(frame, self._where) - self._start) * self._time_base

    def _end(self, frame: av.VideoFrame) -> float:
        """Seconds until which the last frame is shown; as long as the one before where the file does not say."""
        return self._time(frame) + max((frame.duration or 0) * self._time_base, 1 / self._header.rate, self._gap)


@contextlib.contextmanager
def _open_video(media: Media) -> Iterator[_OpenVideo]:
    """Opens a clip and its first video stream; errors inside the context are raised as by `decoding`."""
    # Options of the container alone: PyAV 17.0 crashes where streams, to which it hands others, turn up late (FLV).
    options = {"format_whitelist": ",".join(VIDEO_FORMATS)}
    with (
        decoding(media, lambda error: f"{type(error).__name__}: {error}") as file,
        _content_errors(media.where),
        av.open(UntilItFails(file), "r", container_options=options, **_LENIENT) as container,
    ):
        if not container.streams.video:
            raise BadSampleError(media.where, "it has no video stream")
        stream = container.streams.video[0]
        if not 1 <= stream.width * stream.height <= MAX_PIXELS:
            raise BadSampleError(
                media.where, f"frames of {stream.height}x{stream.width} pixels; 1 to {MAX_PIXELS} are read"
            )
        stream.codec_context.thread_count = 1  # samples are decoded side by side
        yield container, stream


@contextlib.contextmanager
def _content_errors(where: str) -> Iterator[None]:
    """Errors of FFmpeg as BadSampleError: it says EIO and EPERM of content too; only its ENOMEM tells of the host."""
    try:
        yield
    except av.error.FFmpegError as error:
        if isinstance(error, MemoryError):
            raise
        reason = error.strerror or type(error).__name__
        if isinstance(error, av.error.ArgumentError):  # FFmpeg's error for a format that is not allowed
            reason = f"{reason}; read are {', '.join(VIDEO_FORMATS)}"
        raise BadSampleError(where, reason) from error


def _end(
    container: av.container.InputContainer, stream: av.video.stream.VideoStream, media: Media, rate: float
) -> float:
    """Seconds at which the last frame of a clip ends.

    Raises BadSampleError where the packets of all streams end before the container's length, less a frame.
    The last packets are enough where a seek finds them; all packets are read in containers that announce no length,
    and before a file is said to be truncated.
    """
    announced = (container.duration or 0) / av.time_base
    start = (container.start_time or 0) / av.time_base
    for back in _TAILS:
        if back < announced:
            with contextlib.suppress(av.error.FFmpegError):
                container.seek(int((start + announced - back) / _time_base(stream)), stream=stream)
                video_end, file_end = _ends(container, stream, rate)
                if video_end is not None and file_end >= announced:
                    return video_end
    with _open_video(media) as (container, stream):
        video_end, file_end = _ends(container, stream, rate)
    if video_end is None:
        raise BadSampleError(media.where, "its video has no packets with times")
    if file_end < announced and container.format.name not in _WITHOUT_LENGTH:
        raise BadSampleError(
            media.where,
            f"its packets end at {file_end:.2f} s where the header announces {announced:.2f} s: the file is truncated",
        )
    return video_end


def _ends(
    container: av.container.InputContainer, stream: av.video.stream.VideoStream, rate: float
) -> tuple[float | None, float]:
    """Seconds at which the shown packets of the video end, and the packets of all streams, from here to the file's end.

    The end of the file is rounded up by a frame, since not every container says how long a packet lasts.
    """
    shown: list[tuple[float, float]] = []  # when a packet begins and ends
    file_end = 0.0
    for packet in container.demux():
        timestamp = packet.pts if packet.pts is not None else packet.dts
        if timestamp is None or packet.time_base is None:
            continue
        begin, end = (float(ticks * packet.time_base) for ticks in (timestamp, timestamp + (packet.duration or 0)))
        file_end = max(file_end, end)
        if packet.stream_index == stream.index and not packet.is_discard:
            shown.append((begin, end))
    if not shown:
        return None, file_end
    *_, (before, _), (begin, end) = [(-math.inf, 0), *sorted(shown)]
    frame = 1 / rate
    if math.isfinite(before):
        frame = max(frame, begin - before)
    video_end = end if end > begin else begin + frame
    return video_end, max(file_end, video_end) + frame


def _time_base(stream: av.video.stream.VideoStream) -> float:
    assert stream.time_base is not None, "of an opened stream"
    return float(stream.time_base)


def _timestamp(frame: av.VideoFrame, where: str) -> int:
    """When a frame begins to be shown, in units of its stream's time base."""
    timestamp = frame.pts if frame.pts is not None else frame.dts
    if timestamp is None:
        raise BadSampleError(where, "its frames have no times")
    return timestamp


def _quarter_turns(frame: av.VideoFrame) -> int:
    """Counterclockwise quarter turns that make a frame upright."""
    return round(frame.rotation / 90) % 4
