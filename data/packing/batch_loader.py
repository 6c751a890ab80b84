"""The batch loader: decodes and packs the samples of a planned step that lie in rows which this host needs.

It is the last step of the pipeline, run ahead of training by a worker, or by a producer on another host.
"""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from configs.architectures import ModelConfig
from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.packing.dealt_phases import NO_PHASES, DealtPhases, HostArrays
from data.packing.global_batch import GlobalBatch, build_global_batch
from data.packing.loss_normalization import BatchTotals
from data.packing.phases.needed_rows import ALL_ROWS, NeededRows
from data.packing.rows.packed_rows import REFUSED_SAMPLE, empty_rows, pack_rows
from data.packing.rows.refusals import Refusal, call_or_refuse
from data.packing.rows.row_planner import StepPlan
from data.samples.sample import Sample


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class BatchLoader:
    """Decodes planned steps; called with each `StepPlan` ahead of its step.

    The places of a sample that turns out to be unreadable stay empty, and the batch lists the sample. Losses are
    normalised, and items dealt over phase rows, by the planned sizes: other hosts do not learn of the refusal.

    Attributes:
        sample_index: Loads the samples.
        model: Names the modules.
        capacity: Capacity of a row.
        loss_weights: Weights of the language loss and of the generator's loss.
        threads: Decoding threads; 0 decodes sequentially, the fastest for small images.
        needed: Rows that this host needs: only samples that lie in one of them, or have an item there, are decoded.
        phases: Modules whose items are dealt over rows of their own.
    """

    sample_index: SampleIndex
    model: ModelConfig
    capacity: RowCapacity
    loss_weights: tuple[float, float]
    threads: int = 0
    needed: NeededRows = ALL_ROWS
    phases: DealtPhases = NO_PHASES

    def __call__(self, plan: StepPlan) -> GlobalBatch:
        """The batch of a step.

        Raises:
            PhaseCapacityError: Its items do not fit into the rows of a phase.
        """
        sample_format = self.sample_index.sample_format
        tables = self.phases.plan(plan.rows, plan.sizes)
        needed = self.needed.of_batch(len(plan.rows))
        in_rows = {sample_id for row in needed for sample_id in plan.rows[row]}
        loaded = self._load(sorted(in_rows | self.phases.samples(tables, self.needed)))
        samples = {sample_id: sample for sample_id, sample in loaded.items() if isinstance(sample, Sample)}
        packed = pack_rows(
            [[samples.get(sample_id, plan.sizes[sample_id]) for sample_id in ids] for ids in plan.rows],
            self.capacity,
            sample_format,
        )
        refused = {sample_id: sample for sample_id, sample in loaded.items() if isinstance(sample, Refusal)}
        for row, ids in enumerate(plan.rows):
            packed.sample_ids[row, : len(ids)] = [
                REFUSED_SAMPLE if sample_id in refused else sample_id for sample_id in ids
            ]
        totals = BatchTotals.from_sizes(
            (plan.sizes[sample_id] for ids in plan.rows for sample_id in ids), sample_format
        )
        batch = build_global_batch(packed, self.model, sample_format, *self.loss_weights, totals)
        arrays = self.phases.deal_planned(batch.arrays, tables, self.needed)
        for_items = [
            row for row, ids in enumerate(plan.rows) if row not in needed and not samples.keys().isdisjoint(ids)
        ]
        return dataclasses.replace(
            batch,
            arrays=self._without_rows(arrays, for_items),
            real_and_capacity=self.phases.counts(batch.real_and_capacity, arrays),
            state=plan.state_after.to_json(),
            refused=(*plan.refused, *refused.values()),
        )

    def _without_rows(self, arrays: HostArrays, rows: Sequence[int]) -> dict[str, Mapping[str, np.ndarray]]:
        """The arrays with some rows of the global batch emptied; arrays in the rows of phases stay as they are."""
        for module, fields in self._empty_row.items() if rows else ():
            if module not in self.phases.phases:
                for name, empty in fields.items():
                    arrays[module][name][rows] = empty
        return dict(arrays)

    @functools.cached_property
    def _empty_row(self) -> HostArrays:
        sample_format = self.sample_index.sample_format
        return build_global_batch(empty_rows(1, self.capacity, sample_format), self.model, sample_format).arrays

    def _load(self, sample_ids: Sequence[int]) -> dict[int, Sample | Refusal]:
        load = functools.partial(call_or_refuse, self.sample_index.load, self.sample_index)
        parallel_map = _decoding_threads(self.threads).map if self.threads else map
        return dict(zip(sample_ids, parallel_map(load, sample_ids), strict=True))


@functools.cache
def _decoding_threads(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """The thread pool of this process, which the steps of all loaders share; it ends with the process."""
    return concurrent.futures.ThreadPoolExecutor(threads, "decode")
