"""Files of every kind of source, with real photographs and real speech, as one source of samples."""

import dataclasses
import json
import pathlib

import pyarrow
import pyarrow.parquet

from data.datasets.conversations import Conversations
from data.quarantine import Quarantine
from data.records import RecordSource
from data.sources.array_record import ArrayRecord, write_array_record
from data.sources.librispeech import LibriSpeech
from data.sources.llava import LlavaJson
from data.sources.parquet import ParquetTable
from data.sources.webdataset import WebDataset
from tests.data.sources.media import photographs, speech
from tests.data.sources.test_tar_index import tar

COUNT = 6
SAID = ("a flower", "a house in China")


@dataclasses.dataclass(frozen=True)
class MixedSources:
    """Makes the source of a split; write the files first (`write`)."""

    folder: pathlib.Path

    def __call__(self, split: str) -> Conversations:
        """All kinds in training; nothing is held out."""
        return Conversations(split=split, train=tuple(sources(self.folder).items()))


def sources(folder: pathlib.Path) -> dict[str, RecordSource]:
    """One source a layout: seen, drawn and heard."""
    return {
        "llava": LlavaJson(str(folder / "llava.jsonl"), str(folder)),
        "laion": WebDataset(str(folder / "laion.tar"), task="generate"),
        "table": ParquetTable(str(folder / "table.parquet"), image="image"),
        "speech": LibriSpeech(str(folder / "speech")),
        "records": ArrayRecord(str(folder / "speech.array_record")),
    }


def write(folder: pathlib.Path) -> MixedSources:
    """Writes the files of every layout."""
    pictures = [photographs()["flower"], photographs()["china"]]
    for name, picture in zip(("flower.jpg", "china.jpg"), pictures, strict=True):
        (folder / name).write_bytes(picture)
    with (folder / "llava.jsonl").open("w") as file:
        for number in range(COUNT):
            talk = [
                {"from": "human", "value": "<image>\nWhat is it?"},
                {"from": "gpt", "value": SAID[number % 2] * (1 + number)},
            ]
            image = ("flower.jpg", "china.jpg")[number % 2]
            file.write(json.dumps({"id": number, "image": image, "conversations": talk}) + "\n")
    members = []
    for number in range(COUNT):
        members += [(f"{number:05}.jpg", pictures[number % 2]), (f"{number:05}.txt", SAID[number % 2].encode())]
    (folder / "laion.tar").write_bytes(tar(members))
    table = {
        "image": [{"bytes": pictures[number % 2], "path": None} for number in range(COUNT)],
        "text": [SAID[number % 2] for number in range(COUNT)],
    }
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "table.parquet")
    chapter = folder / "speech" / "84" / "1"
    chapter.mkdir(parents=True)
    lines = []
    for number, (flac, transcript) in enumerate(speech().values()):
        (chapter / f"84-1-{number:04}.flac").write_bytes(flac)
        lines.append(f"84-1-{number:04} {transcript}\n")
    (chapter / "84-1.trans.txt").write_text("".join(lines))
    spoken = LibriSpeech(str(folder / "speech"))
    write_array_record(str(folder / "speech.array_record"), spoken, Quarantine({spoken.name: len(spoken)}, 0.5))
    return MixedSources(folder)
