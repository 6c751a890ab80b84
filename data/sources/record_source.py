"""What the pipeline asks of a source of records."""

import operator
from typing import Protocol, SupportsIndex, runtime_checkable

from data.records import Record


@runtime_checkable
class RecordSource(Protocol):
    """Records by index, in an order that never changes.

    Making one reads an index and no payload; a payload is read through its `Media`. A source can be pickled, for it
    goes to worker processes, and may be read from several threads.

    Attributes:
        name: Names it in messages and in the quarantine.
    """

    name: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: SupportsIndex) -> Record:
        """A record.

        Raises:
            BadSampleError: The record cannot be used; `where` names it within the source, as a key does.
            IndexError: There is none of this index.
        """
        ...


def position(index: SupportsIndex, length: int) -> int:
    """The index as an int; raises IndexError outside [0, length)."""
    place = operator.index(index)
    if not 0 <= place < length:
        raise IndexError(f"record {place} of {length}")
    return place
