"""LibriSpeech's layout: speaker/chapter/*.flac, and a transcript file for each chapter with a line an utterance."""

import array
import pathlib
from typing import SupportsIndex

import numpy as np

from data.errors import BadSampleError, DataError
from data.records import Media, Record, check_index
from data.sources.pair_tasks import audio_to_text_turns
from data.sources.parsing import decode_utf8, require_text
from data.sources.paths import check_folder

_AUDIO, _TRANSCRIPT = ".flac", ".trans.txt"


class LibriSpeech:
    """Utterances: the user plays the clip, the assistant answers with its transcript.

    Every `*.trans.txt` below the folder is read in sorted order, so a split or the whole corpus can be given. Clips
    without a transcript, transcripts without a clip and repeated transcripts are unreadable samples. Only positions
    within the transcript files are kept in memory, 24 bytes an utterance.

    Attributes:
        name: Name of the source.
    """

    def __init__(self, folder: str, name: str = "") -> None:
        """Reads the transcript files and no clip.

        Args:
            folder: A split, such as `LibriSpeech/train-clean-100`.
            name: Name of the source; the folder's name by default.

        Raises:
            DataError: The folder is missing or has no transcripts, or one cannot be read.
        """
        check_folder(folder)
        root = pathlib.Path(folder)
        self.name = name or root.resolve().name
        self._root = folder
        self._transcripts = [
            str(path.relative_to(root)) for path in sorted(root.rglob(f"*{_TRANSCRIPT}")) if path.is_file()
        ]
        if not self._transcripts:
            raise DataError(f"{folder} has no *{_TRANSCRIPT}; give the folder that contains the speakers' folders")
        self._bad: dict[int, tuple[str, str]] = {}  # key and reason
        columns = array.array("q")
        for number, transcript in enumerate(self._transcripts):
            self._scan(number, transcript, columns)
        self._index = np.array(columns, np.int64).reshape(-1, 3)  # transcript file, offset and size of a line
        if not len(self._index):
            raise DataError(f"{folder} has only empty transcripts; give the folder that contains the speakers' folders")

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: SupportsIndex) -> Record:
        """The record of an utterance; raises BadSampleError if its clip or transcript is missing."""
        utterance_number = check_index(index, len(self))
        if utterance_number in self._bad:
            raise BadSampleError(*self._bad[utterance_number])
        number, offset, size = map(int, self._index[utterance_number])
        transcript = self._transcripts[number]
        file = pathlib.Path(self._root, transcript)
        utterance, text = _split(Media(f"{transcript}, byte {offset}", str(file), offset, size).read())
        key = _key(transcript, utterance)
        clip = Media.from_file(file.parent / f"{utterance}{_AUDIO}")
        return Record(key, audio_to_text_turns(clip, require_text(key, "the transcript", decode_utf8(key, text))))

    def _scan(self, number: int, transcript: str, columns: array.array) -> None:
        """Adds the utterances of a chapter."""
        file = pathlib.Path(self._root, transcript)
        try:
            content = file.read_bytes()
            clips = {path.name.removesuffix(_AUDIO) for path in file.parent.iterdir() if path.suffix == _AUDIO}
        except OSError as error:
            raise DataError(f"{file} cannot be read ({error}); repair or remove it") from error
        offset, seen = 0, set()
        for line in content.splitlines(keepends=True):
            if line.strip():
                utterance, _ = _split(line)
                key = _key(transcript, utterance)
                if utterance in seen:
                    self._bad[len(columns) // 3] = (f"{key}, byte {offset}", "it is transcribed twice")
                elif utterance not in clips:
                    self._bad[len(columns) // 3] = (key, f"it has no clip {utterance}{_AUDIO}")
                seen.add(utterance)
                columns.extend((number, offset, len(line)))
            offset += len(line)
        for clip in sorted(clips - seen):
            self._bad[len(columns) // 3] = (_key(transcript, clip), "it has no transcript")
            columns.extend((number, 0, 0))


def _split(line: bytes) -> tuple[str, bytes]:
    """The utterance id of a line, and its transcript."""
    utterance, *rest = line.strip().split(maxsplit=1)
    return utterance.decode("utf-8", "backslashreplace"), rest[0] if rest else b""


def _key(transcript: str, utterance: str) -> str:
    """The clip's path below the folder, without its suffix."""
    parent = pathlib.PurePath(transcript).parent.as_posix()
    return f"{parent}/{utterance}"
