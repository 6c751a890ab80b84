"""Records that follow each other made one sample, up to a number of tokens: interleaved documents of short pairs."""

import dataclasses
from collections.abc import Callable

import numpy as np

from data.errors import BadSampleError
from data.records import Record, RecordSource
from data.samples.sample_metadata import SampleMetadata


@dataclasses.dataclass(frozen=True, eq=False)
class JoinedRecords:
    """Runs of records, each outlined as one conversation.

    Attributes:
        records: The records.
        build: Outlines one.
        kind: Of the samples.
        starts: int[n + 1], where each run starts.
    """

    records: RecordSource
    build: Callable[[Record, str], SampleMetadata]
    kind: str
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> SampleMetadata:
        first, last = int(self.starts[index]), int(self.starts[index + 1])
        parts = [self.records[number] for number in range(first, last)]
        key = parts[0].key if len(parts) == 1 else f"{parts[0].key} to {parts[-1].key}"
        return self.build(Record(key, tuple(turn for part in parts for turn in part.turns)), self.kind)


def join_records(
    records: RecordSource, build: Callable[[Record, str], SampleMetadata], kind: str, tokens: int
) -> JoinedRecords:
    """Runs of records of at most so many tokens together, found in one pass over the headers of all.

    A record that cannot be used stands alone, so that it is refused alone; one that is longer stands alone too.
    """
    starts, room = [0], 0
    for number in range(len(records)):
        try:
            length = len(build(records[number], kind).layout.tokens)
        except BadSampleError:
            length = tokens + 1
        if number and length > room:
            starts.append(number)
            room = tokens
        elif not number:
            room = tokens
        room = room - length if length <= tokens else 0
    return JoinedRecords(records, build, kind, np.array([*starts, len(records)]) if len(records) else np.zeros(1, int))
