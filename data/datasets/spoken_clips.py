"""A folder of spoken texts: a FLAC file a clip, and a manifest that says who says what and how long it is.

    manifest.json
    clips/en-us+m3/180/is_there_a_circle.flac

The manifest is written last, so a folder without one is half-written, and writing it again goes on where that stopped.
"""

import concurrent.futures
import dataclasses
import io
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import soundfile

from data.errors import BadSampleError, DataError
from data.media.audio import audio_length
from data.media.mel import SAMPLE_RATE
from data.records import Media

MANIFEST = "manifest.json"
FORMAT = 1
Say = Callable[[str, str, int], np.ndarray]
"""(text, voice, words a minute) -> float32 sound of 16 kHz."""


@dataclasses.dataclass(frozen=True)
class SpokenClip:
    """A clip of the manifest.

    Attributes:
        file: Its path below the folder.
        text: What is said.
        voice: Who says it; a voice belongs to one split.
        speed: Words a minute.
        split: `train` or `test`.
        samples: How many of 16 kHz it has.
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
    say: Say,
    made_by: str,
) -> Iterator[SpokenClip]:
    """Writes every text in every voice at every speed, several at a time; yields the clips in their order.

    What is there already is kept. Every file appears whole or not at all.

    Args:
        folder: Made if it is not there.
        texts: All that is said, each once.
        voices: Those of each split.
        speeds: Words a minute.
        say: Speaks; called from several threads.
        made_by: Named in the manifest.

    Raises:
        DataError: Nothing to say, something named twice, a voice in two splits, two texts that differ only in marks,
            or a folder that cannot be written.
    """
    named = [voice for of_split in voices.values() for voice in of_split]
    for what, items in (("text", texts), ("voice", named), ("speed", speeds), ("file", list(map(_stem, texts)))):
        if not items:
            raise DataError(f"there is no {what} to speak with; name at least one")
        if twice := [item for item in items if items.count(item) > 1]:
            raise DataError(f"{what} {twice[0]!r} is named twice; name every {what} once, a voice for one split only")
    wanted = [
        SpokenClip(f"clips/{voice}/{speed}/{_stem(text)}.flac", text, voice, speed, split, 0)
        for split, of_split in voices.items()
        for voice in of_split
        for speed in speeds
        for text in texts
    ]
    return _written(pathlib.Path(folder), wanted, say, made_by)


def _written(root: pathlib.Path, wanted: Sequence[SpokenClip], say: Say, made_by: str) -> Iterator[SpokenClip]:
    clips = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(_made, root, clip, say) for clip in wanted]
        try:
            for future in futures:
                clips.append(future.result())
                yield clips[-1]
        finally:  # an error, or a reader who stops: what nobody began is not begun
            pool.shutdown(cancel_futures=True)
    head = json.dumps({"format": FORMAT, "made_by": made_by, "rate": SAMPLE_RATE})
    lines = ",\n".join(json.dumps(dataclasses.asdict(clip)) for clip in clips)  # one a clip, for people
    _write_whole(root / MANIFEST, f'{head[:-1]}, "clips": [\n{lines}\n]}}\n'.encode())


def read_spoken_clips(folder: str | os.PathLike[str], split: str) -> tuple[SpokenClip, ...]:
    """The clips of a split, in the manifest's order.

    Raises:
        DataError: No manifest, not one of ours, no clip of the split, or a voice that speaks in two splits.
    """
    path = pathlib.Path(folder) / MANIFEST
    if not path.is_file():
        state = "is half-written" if path.parent.is_dir() else "is not there"
        raise DataError(
            f"the folder of speech {path.parent} {state}: it has no {MANIFEST}; python -m "
            f"mmjax.synthesize_speech --folder={path.parent} writes it, or goes on where it stopped"
        )
    try:
        document = json.loads(path.read_bytes())
        version, clips = document["format"], tuple(_parsed(fields) for fields in document["clips"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no manifest of speech ({error!r}); remove it and write the folder anew") from error
    if version != FORMAT:
        raise DataError(f"{path} is of format {version}, this version reads {FORMAT}; write the folder anew")
    splits: dict[str, str] = {}
    for clip in clips:
        if splits.setdefault(clip.voice, clip.split) != clip.split:
            raise DataError(f"{path}: the voice {clip.voice} speaks in train and in test; keep it in one of them")
    found = tuple(clip for clip in clips if clip.split == split)
    if not found:
        raise DataError(f"{path} has no clip of the split {split!r}; write the folder with voices for it")
    return found


def _parsed(fields: dict[str, Any]) -> SpokenClip:
    for field in dataclasses.fields(SpokenClip):
        if type(fields[field.name]) is not field.type:
            raise TypeError(f"{field.name} of {fields['file']} is {fields[field.name]!r}")
    return SpokenClip(**fields)


def _made(root: pathlib.Path, clip: SpokenClip, say: Say) -> SpokenClip:
    """The clip with its length; spoken now unless its file is there and whole."""
    path = root / clip.file
    try:
        samples = audio_length(Media.from_file(path))
    except BadSampleError:
        sound = io.BytesIO()
        waveform = np.clip(say(clip.text, clip.voice, clip.speed), -1, 1)
        soundfile.write(sound, waveform, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
        _write_whole(path, sound.getvalue())
        samples = len(waveform)
    return dataclasses.replace(clip, samples=samples)


def _write_whole(path: pathlib.Path, content: bytes) -> None:
    """Writes a file so that it is never seen in part."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error}); give a folder that can") from error


def _stem(text: str) -> str:
    return "_".join(re.findall(r"\w+", text.lower()))
