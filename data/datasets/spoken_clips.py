"""A folder of spoken texts: one FLAC file for each clip, and a manifest of texts, voices and lengths.

    manifest.json
    clips/en-us+m3/180/is_there_a_circle.flac

The manifest is written last: a folder without one is incomplete, and writing it again continues where that stopped.
"""

import concurrent.futures
import dataclasses
import io
import json
import os
import pathlib
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from configs.common.strict_json import read_json_file
from data.errors import BadSampleError, DataError
from data.extras import missing_extra
from data.media.sound.audio import audio_length
from data.media.sound.mel import SAMPLE_RATE
from data.records import Media

try:
    import soundfile
except ImportError as error:
    raise missing_extra("writing audio", "audio", error) from error

MANIFEST = "manifest.json"
FORMAT_VERSION = 1

Synthesize = Callable[[str, str, int], np.ndarray]
"""(text, voice, words per minute) -> float32 sound of 16 kHz."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpokenClip:
    """A clip of the manifest.

    Attributes:
        file: Path relative to the folder.
        text: The spoken text.
        voice: Name of the voice; a voice belongs to one split.
        speed: Words per minute.
        split: `train` or `test`.
        samples: Length in samples of 16 kHz.
    """

    file: str
    text: str
    voice: str
    speed: int
    split: str
    samples: int


def write_spoken_clips(
    folder: str | os.PathLike[str],
    texts: Sequence[str],
    voices: Mapping[str, Sequence[str]],
    speeds: Sequence[int],
    synthesize: Synthesize,
    made_by: str,
) -> Generator[SpokenClip, None, None]:
    """Writes every text in every voice at every speed, several at a time; yields the clips in order.

    Existing clips are kept. Every file appears complete or not at all.

    Args:
        folder: Created if missing.
        texts: The texts to speak, each once.
        voices: Voices of each split.
        speeds: Words per minute.
        synthesize: Speaks; called from several threads.
        made_by: Name of the program, for the manifest.

    Raises:
        DataError: No texts, voices or speeds; a repeated one; a voice in two splits; two texts that differ only in
            punctuation; or the folder cannot be written.
    """
    all_voices = [voice for split_voices in voices.values() for voice in split_voices]
    stems = [_file_stem(text) for text in texts]
    for kind, items in (("text", texts), ("voice", all_voices), ("speed", speeds), ("file", stems)):
        if not items:
            raise DataError(f"there is no {kind} to speak with; name at least one")
        if repeated := [item for item in items if list(items).count(item) > 1]:
            raise DataError(
                f"{kind} {repeated[0]!r} is named twice; name every {kind} once, a voice for one split only"
            )
    clips = [
        SpokenClip(
            file=f"clips/{voice}/{speed}/{_file_stem(text)}.flac",
            text=text,
            voice=voice,
            speed=speed,
            split=split,
            samples=0,
        )
        for split, split_voices in voices.items()
        for voice in split_voices
        for speed in speeds
        for text in texts
    ]
    return _write_clips(pathlib.Path(folder), clips, synthesize, made_by)


def _write_clips(
    root: pathlib.Path, clips: Sequence[SpokenClip], synthesize: Synthesize, made_by: str
) -> Generator[SpokenClip, None, None]:
    written = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(_write_clip, root, clip, synthesize) for clip in clips]
        try:
            for future in futures:
                written.append(future.result())
                yield written[-1]
        finally:  # after an error, or when the reader stops: cancels what has not begun
            pool.shutdown(cancel_futures=True)
    header = json.dumps({"format": FORMAT_VERSION, "made_by": made_by, "rate": SAMPLE_RATE})
    lines = ",\n".join(json.dumps(dataclasses.asdict(clip)) for clip in written)  # one line a clip
    _write_atomically(root / MANIFEST, f'{header[:-1]}, "clips": [\n{lines}\n]}}\n'.encode())


def read_spoken_clips(folder: str | os.PathLike[str], split: str) -> tuple[SpokenClip, ...]:
    """The clips of a split, in the manifest's order.

    Raises:
        DataError: There is no manifest; it is invalid; it has no clip of the split; or a voice speaks in two splits.
    """
    path = pathlib.Path(folder) / MANIFEST
    if not path.is_file():
        state = "is incomplete" if path.parent.is_dir() else "does not exist"
        raise DataError(
            f"the folder of speech {path.parent} {state}: it has no {MANIFEST}; python -m "
            f"mmjax.synthesize_speech --folder={path.parent} writes it, or continues where it stopped"
        )
    try:
        document = read_json_file(path, DataError)
        version, clips = document["format"], tuple(_parse_clip(fields) for fields in document["clips"])
    except (DataError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not a manifest of speech ({error!r}); remove it and write the folder anew"
        ) from error
    if version != FORMAT_VERSION:
        raise DataError(f"{path} is of format {version!r}, this version reads {FORMAT_VERSION}; write the folder anew")
    split_of_voice: dict[str, str] = {}
    for clip in clips:
        if split_of_voice.setdefault(clip.voice, clip.split) != clip.split:
            raise DataError(f"{path}: the voice {clip.voice} speaks in train and in test; keep it in one of them")
    split_clips = tuple(clip for clip in clips if clip.split == split)
    if not split_clips:
        raise DataError(f"{path} has no clip of the split {split!r}; write the folder with voices for it")
    return split_clips


def _parse_clip(fields: dict[str, Any]) -> SpokenClip:
    for field in dataclasses.fields(SpokenClip):
        if type(fields[field.name]) is not field.type:
            raise TypeError(f"{field.name} of {fields['file']} is {fields[field.name]!r}")
    return SpokenClip(**fields)


def _write_clip(root: pathlib.Path, clip: SpokenClip, synthesize: Synthesize) -> SpokenClip:
    """The clip with its length; synthesized unless its file exists and is valid."""
    path = root / clip.file
    try:
        samples = audio_length(Media.from_file(path))
    except BadSampleError:
        encoded = io.BytesIO()
        waveform = np.clip(synthesize(clip.text, clip.voice, clip.speed), -1, 1)
        soundfile.write(encoded, waveform, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
        _write_atomically(path, encoded.getvalue())
        samples = len(waveform)
    return dataclasses.replace(clip, samples=samples)


def _write_atomically(path: pathlib.Path, content: bytes) -> None:
    """Writes a file such that no process reads an incomplete one."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error}); give a folder that can") from error


def _file_stem(text: str) -> str:
    return "_".join(re.findall(r"\w+", text.lower()))
