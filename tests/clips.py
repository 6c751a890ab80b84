"""Video files that tests write: every frame has its number as its grey level."""

import fractions
import io
import tempfile

import av
import numpy as np

STEP = 9
"""Difference in grey level between a frame and the next one: more than encoding loses."""


def clip_file(
    frames=12,
    rate=6,
    *,
    size=(32, 48),
    times=None,
    kind="mp4",
    codec="libx264",
    settings=None,
    marked=False,
    sound=None,
    key_frames=8,
):
    """The bytes of a clip.

    Args:
        frames: Number of frames; frame k is of grey level `STEP` k modulo 252.
        rate: Frames per second.
        size: (height, width).
        times: Times of the frames in thousandths of a second; by default as `rate` says.
        kind: Container.
        codec: Encoder.
        settings: Options of the container.
        marked: Whether the upper left quarter of every frame is white.
        sound: Encoder and seconds of a track of silence, which begins at 0.
        key_frames: Frames from a key frame to the next one, of H.264.
    """
    with (
        tempfile.NamedTemporaryFile() as file,
        av.open(file.name, "w", format=kind, options=settings or {}) as container,
    ):
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        if "264" in codec:
            stream.options = {"bf": "3", "g": str(key_frames), "crf": "10", "b-pyramid": "normal"}
        else:
            stream.bit_rate = 8_000_000
        if times is not None:
            stream.codec_context.time_base = fractions.Fraction(1, 1000)
        track = sound and container.add_stream(sound[0], rate=48_000)
        seconds = [number / rate for number in range(frames)] if times is None else [time / 1000 for time in times]
        silence = list(_silence(*sound)) if sound else []
        for number in range(frames):
            while silence and silence[0].time <= seconds[number]:
                container.mux(track.encode(silence.pop(0)))
            pixels = np.full((*size, 3), STEP * number % 252, np.uint8)
            if marked:
                pixels[: size[0] // 2, : size[1] // 2] = 255
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.time_base = fractions.Fraction(1, 1000) if times is not None else 1 / fractions.Fraction(rate)
            frame.pts = times[number] if times is not None else number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if track:
            for piece in silence:
                container.mux(track.encode(piece))
            container.mux(track.encode(None))
        container.close()
        return file.read()


def _silence(encoder, seconds):
    """Frames of silence at 48 kHz, as long as the encoder takes them."""
    samples = {"aac": 1024, "libopus": 960}[encoder]
    for start in range(0, round(seconds * 48_000), samples):
        piece = av.AudioFrame.from_ndarray(np.zeros((1, samples), np.int16), format="s16p", layout="mono")
        piece.sample_rate, piece.pts, piece.time_base = 48_000, start, fractions.Fraction(1, 48_000)
        yield piece


def copied(content, *, start, kind="mp4"):
    """The clip from a time on, its packets copied: MP4 hides what precedes the time by an edit list."""
    with (
        tempfile.NamedTemporaryFile() as file,
        av.open(io.BytesIO(content)) as source,
        av.open(file.name, "w", format=kind) as container,
    ):
        stream = source.streams.video[0]
        target = container.add_stream_from_template(stream)
        source.seek(round(start * av.time_base))
        for packet in source.demux(stream):
            if packet.dts is not None:
                packet.pts -= round(start / packet.time_base)
                packet.dts -= round(start / packet.time_base)
                packet.stream = target
                container.mux(packet)
        container.close()
        return file.read()


def frame_number(pixels):
    """The number of a decoded frame of `clip_file`, below 28."""
    return round(float(pixels.mean()) / STEP)
