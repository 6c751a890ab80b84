"""Photographs and speech as files have them, and what a record says, for the tests of sources."""

import functools
import io

import soundfile
from PIL import Image

from data.records import AudioPart, ImagePart, Record, TextPart
from tests.data import real_data


@functools.cache
def photographs() -> dict[str, bytes]:
    """Two photographs, shrunk to 64 x 43, as JPEG by their names."""
    files = {}
    for name, pixels in real_data.photographs().items():
        file = io.BytesIO()
        Image.fromarray(pixels).resize((64, 43)).save(file, "JPEG")
        files[name.removesuffix(".jpg")] = file.getvalue()
    return files


@functools.cache
def speech() -> dict[str, tuple[bytes, str]]:
    """FLAC and transcript of utterances by their ids: five sentences of a novel."""
    captioned = {}
    for path in real_data.speech_files():
        transcription = path.parent / "transcription"
        if transcription.exists():
            line = next(line for line in transcription.read_text().splitlines() if line.endswith(f"({path.stem})"))
            samples, rate = soundfile.read(path, dtype="int16")
            file = io.BytesIO()
            soundfile.write(file, samples, rate, format="FLAC")
            captioned[path.stem] = (file.getvalue(), line.removeprefix("<s> ").partition(" </s>")[0])
    return captioned


def image_of(part: object) -> Image.Image:
    """The decoded image of a part that must be a picture."""
    assert isinstance(part, ImagePart)
    with Image.open(io.BytesIO(part.media.read())) as image:
        image.load()
        return image


def seconds_of(part: object) -> float:
    """The length of a part that must be a clip."""
    assert isinstance(part, AudioPart)
    return soundfile.info(io.BytesIO(part.media.read())).duration


def told(record: Record) -> list[tuple[str, list[str]]]:
    """A record in short: roles, texts, and the names of media kinds in angle brackets."""
    return [
        (turn.role, [part.text if isinstance(part, TextPart) else f"<{type(part).__name__}>" for part in turn.parts])
        for turn in record.turns
    ]
