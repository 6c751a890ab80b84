"""The batch loader: decodes and packs the samples of a planned step, those of the rows that this host needs."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Sequence

from configs.architectures import ModelConfig
from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.packing.dealt_phases import DealtPhases
from data.packing.global_batch import BatchTotals, GlobalBatch, build_global_batch
from data.packing.packed_rows import pack_rows
from data.packing.refusals import Refusal, call_or_refuse
from data.packing.step_planner import StepPlan
from data.samples.sample import Sample


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class BatchLoader:
    """Decodes planned steps.

    The positions of a sample that turns out to be unreadable stay empty, and the batch lists the sample. Losses are
    still normalised by what was planned, because other hosts do not learn of the refusal.

    Attributes:
        sample_index: Loads the samples.
        model: Names the modules.
        capacity: Capacity of a row.
        loss_weights: Weights of the language loss and of the generator's loss.
        threads: Decoding threads; 0 decodes sequentially, the fastest for small images.
        rows: Rows that this host needs; None for all.
        phases: Modules whose items are dealt over rows of their own.
    """

    sample_index: SampleIndex
    model: ModelConfig
    capacity: RowCapacity
    loss_weights: tuple[float, float]
    threads: int = 0
    rows: Sequence[int] | None = None
    phases: DealtPhases = DealtPhases()

    def __call__(self, plan: StepPlan) -> GlobalBatch:
        """The batch of a step."""
        sample_format = self.sample_index.sample_format
        needed_rows = set(range(len(plan.rows)) if self.rows is None else self.rows)
        needed_ids = [sample_id for row, ids in enumerate(plan.rows) if row in needed_rows for sample_id in ids]
        loaded = dict(zip(needed_ids, self._load(needed_ids), strict=True))
        rows = [
            [sample for sample_id in ids if row in needed_rows and isinstance(sample := loaded[sample_id], Sample)]
            for row, ids in enumerate(plan.rows)
        ]
        refused = tuple(result for result in loaded.values() if isinstance(result, Refusal))
        totals = BatchTotals.from_sizes(
            (plan.sizes[sample_id] for ids in plan.rows for sample_id in ids), sample_format
        )
        packed = pack_rows(rows, self.capacity, sample_format)
        for row in set(range(len(plan.rows))) - needed_rows:
            packed.sample_ids[row, : len(plan.rows[row])] = plan.rows[row]
        batch = build_global_batch(packed, self.model, sample_format, *self.loss_weights, totals)
        arrays = self.phases.deal(batch.arrays)
        return dataclasses.replace(
            batch,
            arrays=arrays,
            counts=self.phases.counts(batch.counts, arrays),
            state=plan.state_after.to_json(),
            refused=(*plan.refused, *refused),
        )

    def _load(self, sample_ids: Sequence[int]) -> list[Sample | Refusal]:
        load = functools.partial(call_or_refuse, self.sample_index.load, self.sample_index)
        parallel_map = _decoding_threads(self.threads).map if self.threads else map
        return list(parallel_map(load, sample_ids))


@functools.cache
def _decoding_threads(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """The thread pool of this process, which the steps of all loaders share; it ends with the process."""
    return concurrent.futures.ThreadPoolExecutor(threads, "decode")
