"""WebDataset's layout, used by LAION: tar shards whose members of one name, up to the suffix, are one sample."""

import array
import concurrent.futures
import dataclasses
from collections.abc import Mapping, Sequence
from typing import SupportsIndex

import numpy as np

from data.errors import BadSampleError, DataError
from data.records import Media, Record, check_index
from data.sources.pair_tasks import pair_task
from data.sources.parsing import decode_utf8, parse_json, require_text
from data.sources.paths import find_files
from data.sources.tar_index import TarIndex, TarMember, index_tar

# Suffixes of the formats that are decoded (`data.media`), for each kind of media.
_SUFFIXES = {
    "image": ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "jp2"),
    "audio": ("wav", "flac", "mp3", "ogg", "oga", "opus"),
    "video": ("mp4", "webm", "mkv", "mov", "m4v", "avi", "mpg", "mpeg", "ts", "flv", "ogv", "gif"),
}
_TEXT, _JSON = "txt", "json"
_SCAN_THREADS = 8  # they mostly wait for the file system


@dataclasses.dataclass(frozen=True)
class _ShardSample:
    """The members of one sample, and the reason why it cannot be used."""

    key: str
    media: TarMember | None = None
    text: TarMember | None = None
    reason: str = ""


class WebDataset:
    """Pairs of an image, an audio clip or a video clip and its text from tar shards.

    A sample is the members of one key, `000012.jpg`, `000012.txt`, `000012.json`: a medium (jpg, jpeg, png, webp, gif,
    bmp, tif, tiff, ppm, pgm, jp2; wav, flac, mp3, ogg, oga, opus; mp4, webm, mkv, mov, m4v, avi, mpg, mpeg, ts, flv,
    ogv, gif) and a text, which is the txt or, without one, the caption in the json. Other members are skipped, and so
    are names without a key, such as `.DS_Store`. The members of a sample need not be adjacent.

    Of a truncated tar, complete samples are used, and the truncated one is an unreadable sample.

    Attributes:
        name: Name of the source.
    """

    def __init__(
        self, shards: str | Sequence[str], task: str = "describe", caption: str = "caption", name: str = "webdataset"
    ) -> None:
        """Scans the headers of all shards; reads no payload.

        Args:
            shards: Paths of uncompressed tars, with braces (`shards-{0000..0012}.tar`) and wildcards.
            task: `describe` and `generate` take images, `transcribe` audio, `describe_video` video; see
                `data.sources.pair_tasks`.
            caption: Field of the json with the text of a sample without txt.
            name: Name of the source.

        Raises:
            DataError: A shard is missing or not a tar, the shards have no samples, or the task is unknown.
        """
        self.name = name
        self._task = pair_task("WebDataset", task)
        self._caption = caption
        self._shards = find_files(shards)
        self._keys: list[str] = []
        self._reasons: dict[int, str] = {}
        columns = array.array("q")
        with concurrent.futures.ThreadPoolExecutor(_SCAN_THREADS) as pool:
            # The members of one shard are converted to columns before the next shard's, which limits memory.
            for shard, samples in enumerate(pool.map(self._scan, self._shards)):
                for sample in samples:
                    if sample.reason:
                        self._reasons[len(self._keys)] = sample.reason
                    self._keys.append(sample.key)
                    is_json = sample.text is not None and sample.text.name.lower().endswith(f".{_JSON}")
                    columns.extend((shard, *_offset_and_size(sample.media), *_offset_and_size(sample.text), is_json))
        if not self._keys:
            raise DataError(f"{self._shards[0]} and the other shards hold no samples; check the pattern of their paths")
        # Columns: shard; offset and size of the medium; offset and size of the text; whether the text is JSON.
        self._index = np.array(columns, np.int64).reshape(-1, 6)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: SupportsIndex) -> Record:
        """The record of a sample, whose text is read; raises BadSampleError for an incomplete sample."""
        number = check_index(index, len(self))
        shard, media_at, media_size, text_at, text_size, is_json = map(int, self._index[number])
        path = self._shards[shard]
        key = f"{path}:{self._keys[number]}"
        if number in self._reasons:
            raise BadSampleError(key, self._reasons[number])
        subject, value = "the text", decode_utf8(key, Media(key, path, text_at, text_size).read()).strip()
        if is_json:
            entry = parse_json(key, value)
            subject, value = (
                f"{self._caption} in the json",
                entry.get(self._caption) if isinstance(entry, Mapping) else None,
            )
        return Record(key, self._task.turns(Media(key, path, media_at, media_size), require_text(key, subject, value)))

    def _scan(self, path: str) -> list[_ShardSample]:
        """The samples of a shard, in the order of their first members."""
        index = index_tar(path)
        groups: dict[str, list[tuple[str, TarMember]]] = {}
        for member in index.members:
            folder, slash, file = member.name.rpartition("/")
            stem, dot, suffix = file.partition(".")
            if stem and dot:
                groups.setdefault(f"{folder}{slash}{stem}", []).append((suffix.lower(), member))
        samples = [self._sample(key, members, index) for key, members in groups.items()]
        if index.damage and not (index.members and index.is_truncated(index.members[-1])):
            samples.append(_ShardSample("(the rest)", reason=f"{index.damage}; the rest is lost"))
        return samples

    def _sample(self, key: str, members: list[tuple[str, TarMember]], index: TarIndex) -> _ShardSample:
        """One sample, with the reason if it cannot be used."""
        key = key.encode("utf-8", "backslashreplace").decode()
        suffixes = [suffix for suffix, _ in members]
        member_of_suffix = dict(members)
        media = [suffix for suffix in member_of_suffix if suffix in _SUFFIXES[self._task.media]]
        text = next((suffix for suffix in (_TEXT, _JSON) if suffix in member_of_suffix), "")
        if any(index.is_truncated(member) for _, member in members):
            reason = f"{index.damage or 'the file is truncated'}, within this sample"
        elif len(member_of_suffix) < len(suffixes):
            twice = next(suffix for suffix in suffixes if suffixes.count(suffix) > 1)
            reason = f"it has two members of suffix {twice}: the key is there twice"
        elif len(media) > 1:
            reason = f"it has {len(media)} media ({', '.join(media)}) where one is expected"
        elif media and text:
            reason = "" if member_of_suffix[media[0]].size else f"its {media[0]} is empty"
            return _ShardSample(key, member_of_suffix[media[0]], member_of_suffix[text], reason)
        else:
            missing = f"{_TEXT} or {_JSON}" if media else " or ".join(_SUFFIXES[self._task.media])
            reason = f"it has no {missing}" + (f"; {index.damage}" if index.damage else "")
        return _ShardSample(key, reason=reason)


def _offset_and_size(member: TarMember | None) -> tuple[int, int]:
    return (member.offset, member.size) if member else (0, 0)
