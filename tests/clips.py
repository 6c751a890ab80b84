"""Video files that tests write: every frame has its number as its grey level."""

import fractions
import tempfile

import av
import numpy as np

STEP = 9
"""Difference in grey level between a frame and the next one: more than encoding loses."""


def clip_file(
    frames=12, rate=6, *, size=(32, 48), times=None, kind="mp4", codec="libx264", settings=None, marked=False
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
    """
    with (
        tempfile.NamedTemporaryFile() as file,
        av.open(file.name, "w", format=kind, options=settings or {}) as container,
    ):
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        if "264" in codec:
            stream.options = {"bf": "3", "g": "8", "crf": "10", "b-pyramid": "normal"}
        else:
            stream.bit_rate = 8_000_000
        if times is not None:
            stream.codec_context.time_base = fractions.Fraction(1, 1000)
        for number in range(frames):
            pixels = np.full((*size, 3), STEP * number % 252, np.uint8)
            if marked:
                pixels[: size[0] // 2, : size[1] // 2] = 255
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.time_base = fractions.Fraction(1, 1000) if times is not None else 1 / fractions.Fraction(rate)
            frame.pts = times[number] if times is not None else number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        container.close()
        return file.read()


def frame_number(pixels):
    """The number of a decoded frame of `clip_file`, below 28."""
    return round(float(pixels.mean()) / STEP)
