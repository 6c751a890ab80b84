"""What a process of a run asks of its batches: the rows it needs, the phases of the plan, and what to make ahead."""

import dataclasses
from collections.abc import Callable

from data.packing.dealt_phases import NO_PHASES, DealtPhases
from data.packing.global_batch import GlobalBatch
from data.packing.phases.needed_rows import ALL_ROWS, NeededRows


def _as_it_is(batch: GlobalBatch) -> GlobalBatch:
    return batch


@dataclasses.dataclass(frozen=True)
class BatchRequirements:
    """What a process asks of its batches.

    Attributes:
        needed: Rows that it needs; the others stay empty.
        phases: Modules whose items are dealt over rows of their own.
        prepare: What it adds to a batch ahead of its step; called in a thread of this process.
    """

    needed: NeededRows = ALL_ROWS
    phases: DealtPhases = NO_PHASES
    prepare: Callable[[GlobalBatch], GlobalBatch] = _as_it_is


WHOLE_BATCHES = BatchRequirements()
"""Of a process that computes all modules, in the rows of the global batch."""
