"""From a planned step to its global batch: the samples of the rows that this host needs are decoded and packed."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Sequence

from configs.architectures import ModelConfig
from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.packing.global_batch import BatchTotals, GlobalBatch, build_global_batch
from data.packing.packed_rows import pack_rows
from data.packing.refusals import Refusal, call_or_refuse
from data.packing.step_planner import StepPlan
from data.samples.sample import Sample


@dataclasses.dataclass(frozen=True, eq=False)
class BatchLoader:
    """Decodes planned steps.

    A sample that turns out to be unreadable leaves its place empty, and is noted; the losses are still divided by what
    was planned, because other hosts do not know of it.

    Attributes:
        catalogue: Finds the samples.
        model: Names the modules.
        capacity: Of a row.
        weights: What the language loss and the generator's count.
        threads: That decode at once; 0 decodes one after the other, which is fastest for small images.
        rows: Rows that this host needs; None for all.
    """

    sample_index: SampleIndex
    model: ModelConfig
    capacity: RowCapacity
    weights: tuple[float, float]
    threads: int = 0
    rows: Sequence[int] | None = None

    def __call__(self, plan: StepPlan) -> GlobalBatch:
        """The batch of a step."""
        needed = set(range(len(plan.rows)) if self.rows is None else self.rows)
        wanted = [number for row, numbers in enumerate(plan.rows) if row in needed for number in numbers]
        loaded = dict(zip(wanted, self._load(wanted), strict=True))
        rows = [
            [found for number in numbers if row in needed and isinstance(found := loaded[number], Sample)]
            for row, numbers in enumerate(plan.rows)
        ]
        refused = tuple(found for found in loaded.values() if isinstance(found, Refusal))
        totals = BatchTotals.from_sizes(plan.sizes[number] for numbers in plan.rows for number in numbers)
        packed = pack_rows(rows, self.capacity, self.sample_index.sample_format)
        for row in set(range(len(plan.rows))) - needed:
            packed.sample_ids[row, : len(plan.rows[row])] = plan.rows[row]
        batch = build_global_batch(packed, self.model, self.sample_index.sample_format, *self.weights, totals)
        return dataclasses.replace(batch, state=plan.state_after.to_json(), refused=(*plan.refused, *refused))

    def _load(self, numbers: Sequence[int]) -> list[Sample | Refusal]:
        load = functools.partial(call_or_refuse, self.sample_index.load, self.sample_index)
        each = _pool(self.threads).map if self.threads else map
        return list(each(load, numbers))


@functools.cache
def _pool(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """So many threads of this process; every step of every loader uses the same ones, and they end with the process."""
    return concurrent.futures.ThreadPoolExecutor(threads, "decode")
