"""Requirements of one process on its batches: the rows it needs, the phases of the plan, and what to make ahead.

An engine states them, and the pipeline or the producers make batches by them.
"""

import dataclasses
from collections.abc import Callable

from data.packing.dealt_phases import NO_PHASES, DealtPhases
from data.packing.global_batch import GlobalBatch
from data.packing.phases.needed_rows import ALL_ROWS, NeededRows


def _as_it_is(batch: GlobalBatch) -> GlobalBatch:
    return batch


@dataclasses.dataclass(frozen=True)
class BatchRequirements:
    """Requirements of a process on its batches.

    Attributes:
        needed: Rows that the process needs; the others stay empty.
        phases: Modules whose items are dealt over rows of their own.
        prepare: Adds the exchange tables to a batch ahead of its step; called in a thread of this process.
    """

    needed: NeededRows = ALL_ROWS
    phases: DealtPhases = NO_PHASES
    prepare: Callable[[GlobalBatch], GlobalBatch] = _as_it_is


WHOLE_BATCHES = BatchRequirements()
"""Requirements of a process that computes all modules, in the rows of the global batch."""
