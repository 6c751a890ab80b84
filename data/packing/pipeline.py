"""The pipeline: an iterator of global batches, planned, decoded and packed ahead of the step that uses them.

Grain runs it: planning and decoding in a thread, or in worker processes that take every n-th step each. The state of
the iterator is the planner's state after the last batch that it returned. Batches that were prepared ahead, by any
number of workers, do not change it.
"""

import collections
import dataclasses
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, SupportsIndex, runtime_checkable

import grain
import numpy as np
from absl import flags

from configs.architectures import BackboneConfig, ModelConfig
from data.data_config import DataConfig
from data.datasets.dataset import Dataset, SampleIndex
from data.errors import DataError
from data.packing.batch_loader import BatchLoader
from data.packing.global_batch import GlobalBatch, capacity_for_model
from data.packing.grouping.grouping_policies import GROUPING_POLICIES, row_limits
from data.packing.refusals import RefusalLog
from data.packing.step_planner import OrderRows, PlannerState, StepPlan, StepPlanner
from data.samples.sample import Sample
from data.samples.sample_format import SampleFormat


@runtime_checkable
class ClosableIterator(Protocol):
    """An iterator of batches whose threads and processes end with `close`."""

    def __iter__(self) -> Iterator[GlobalBatch]: ...

    def __next__(self) -> GlobalBatch: ...

    def close(self) -> None:
        """Ends its threads and processes."""
        ...


class BatchIterator(Iterator[GlobalBatch]):
    """Global batches of a data set; made by `training_batches`, `evaluation_batches` or `remote_batches`.

    `get_state` describes the batches returned so far, not those prepared ahead. It is a small JSON value; an
    iterator of the same configuration and data set that receives it continues with exactly the remaining batches.
    """

    def __init__(
        self,
        sample_index: SampleIndex,
        fingerprint: dict[str, Any],
        refusals: RefusalLog,
        start: Callable[[PlannerState], Iterable[GlobalBatch]],
    ) -> None:
        """Creates an iterator at the beginning.

        Args:
            sample_index: Names the kinds of samples, and loads samples for `load_samples`.
            fingerprint: Everything that decides which samples form step k, as JSON values.
            refusals: Collects the refusals of batches.
            start: Makes the batches that follow a state; their iterator has `close`.
        """
        self._sample_index, self._fingerprint, self._refusals, self._start = sample_index, fingerprint, refusals, start
        self._batches = 0
        self._samples: collections.Counter[str] = collections.Counter()
        self._planner_state = PlannerState()
        self._closed = False
        self._open: list[ClosableIterator] = []
        # Grain 0.2.18 aborts the process if a prefetching thread, or an iterator, outlives the interpreter's modules.
        self._finalizer = weakref.finalize(self, _close_all, self._open)

    @property
    def sample_format(self) -> SampleFormat:
        """Format of the samples."""
        return self._sample_index.sample_format

    @property
    def _iterator(self) -> ClosableIterator:
        if self._closed:
            raise DataError("these batches are closed; make a new iterator and restore the state")
        if not self._open:
            iterator = iter(self._start(self._planner_state))
            assert isinstance(iterator, ClosableIterator)
            self._open.append(iterator)
        return self._open[0]

    def __next__(self) -> GlobalBatch:
        batch = next(self._iterator)
        self._refusals.add(batch.refused)
        self._batches += 1
        self._planner_state = PlannerState.from_json(batch.state)
        sample_ids = batch.sample_ids[batch.sample_ids >= 0]
        self._samples.update(self._sample_index.kind_of(sample_id) for sample_id in sample_ids)
        return batch

    def get_state(self) -> dict[str, Any]:
        """The state after the last batch returned."""
        return {
            "fingerprint": self._fingerprint,
            "batches": self._batches,
            "samples": dict(self._samples),
            "planner": self._planner_state.to_json(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken.

        Raises:
            DataError: The state belongs to another configuration or data set; names the differences.
        """
        differences = fingerprint_differences(state["fingerprint"], self._fingerprint)
        if differences:
            raise DataError(
                f"data state of another configuration: {differences}; restore with the one it was saved under"
            )
        _close_all(self._open)
        self._batches = state["batches"]
        self._samples = collections.Counter(state["samples"])
        self._planner_state = PlannerState.from_json(state["planner"])

    def counters(self) -> dict[str, Any]:
        """Batches and samples by kind returned since the beginning of the run; samples that this process refused."""
        return {"batches": self._batches, "samples": dict(self._samples), **self._refusals.counts()}

    def write_refused(self, folder: str | os.PathLike[str]) -> None:
        """Writes the samples that this process refused, with reasons: `unreadable.jsonl`, `oversized.jsonl`."""
        self._refusals.write(folder)

    def load_samples(self, sample_ids: Iterable[SupportsIndex]) -> list[Sample]:
        """The decoded samples of global ids: what a batch was packed from."""
        return [self._sample_index.load(sample_id) for sample_id in sample_ids]

    def close(self) -> None:
        """Ends the threads and workers; losing the last reference and the end of the process do so too."""
        self._closed = True
        self._finalizer()


def _close_all(iterators: list[ClosableIterator]) -> None:
    """Closes iterators and releases them."""
    while iterators:
        iterators.pop().close()


@dataclasses.dataclass(frozen=True, eq=False)
class BatchPipeline:
    """The pure functions of a pipeline, the same in every process: planner state -> step plan -> batch.

    Attributes:
        sample_index: The samples.
        planner: Decides which of them form a step.
        loader: Decodes a planned step.
        order_rows: Orders the rows of a step; None to keep them as they are planned.
        fingerprint: Everything that decides which samples form step k, as JSON values.
    """

    sample_index: SampleIndex
    planner: StepPlanner
    loader: BatchLoader
    order_rows: OrderRows | None
    fingerprint: dict[str, Any]

    def steps(self, state: PlannerState) -> Iterator[StepPlan]:
        """The steps that follow a state, their rows in order."""
        for plan in self.planner.steps(state):
            yield plan.reordered(self.order_rows) if self.order_rows else plan


def training_batches(
    config: DataConfig,
    model: ModelConfig,
    dataset: Dataset,
    order_rows: OrderRows | None = None,
    rows: Sequence[int] | None = None,
) -> BatchIterator:
    """Endless batches: every kind is shuffled anew each epoch, and kinds are mixed in proportion to `config.mixture`.

    Args:
        config: How samples become batches.
        model: The model that reads them.
        dataset: The samples.
        order_rows: Orders the rows of a step from the sizes of their samples; None to keep them as they are planned.
        rows: Rows that this host needs, numbered in that order; the others stay empty. None for all.

    Raises:
        DataError: The data set lacks a kind of the mixture, or the model does not fit the pipeline or the vocabulary.
    """
    pipeline = training_pipeline(config, model, dataset, order_rows)
    return _run_pipeline(dataclasses.replace(pipeline, loader=dataclasses.replace(pipeline.loader, rows=rows)), config)


def training_pipeline(
    config: DataConfig, model: ModelConfig, dataset: Dataset, order_rows: OrderRows | None = None
) -> BatchPipeline:
    """The pipeline of `training_batches`, with its arguments and errors."""
    sample_index = make_sample_index(config, model, dataset)
    kinds = list(sample_index.counts)
    shares = config.shares(sample_index.counts)
    streams = []
    for kind in shares:
        sample_ids = sample_index.ids_of_kind(kind)
        # Each kind has a seed of its own: otherwise two kinds of the same size would come in the same order.
        seed = int(np.random.SeedSequence((config.seed, kinds.index(kind))).generate_state(1)[0])
        streams.append(grain.MapDataset.range(sample_ids.start, sample_ids.stop).seed(seed).shuffle().repeat())
    sample_stream = grain.MapDataset.mix(streams, weights=list(shares.values()))
    return _make_pipeline(sample_stream, sample_index, config, model, "training", order_rows)


def evaluation_batches(
    config: DataConfig, model: ModelConfig, dataset: Dataset, kinds: Sequence[str] | None = None
) -> BatchIterator:
    """One pass over all samples of some kinds, each exactly once; the last batch is filled up with empty rows.

    A sample that does not fit into a row is an error, whatever `config.oversized` says: a score over the others would
    be misleading.

    Args:
        config: How samples become batches.
        model: The model that reads them.
        dataset: The samples.
        kinds: Kinds to evaluate; `dataset.evaluated_kinds` by default.

    Raises:
        DataError: As `training_batches`; from the iterator, if a sample does not fit into a row.
    """
    kinds = dataset.evaluated_kinds if kinds is None else kinds
    mixture = tuple((kind, 1.0) for kind in kinds)
    config = dataclasses.replace(config, oversized="error", mixture=mixture, grouping="first_fit")
    sample_index = make_sample_index(config, model, dataset)
    sample_ids = [sample_id for kind in kinds for sample_id in sample_index.ids_of_kind(kind)]
    sample_stream = grain.MapDataset.source(sample_ids)
    return _run_pipeline(_make_pipeline(sample_stream, sample_index, config, model, "evaluation", None), config)


def make_sample_index(config: DataConfig, model: ModelConfig, dataset: Dataset) -> SampleIndex:
    """The samples of a data set under global ids, laid out for a model; errors as of `training_batches`."""
    sample_index = SampleIndex(dataset, SampleFormat.for_model(model, config.patches, config.frames))
    for kind in config.shares(sample_index.counts):
        sample_index.ids_of_kind(kind)
    if dataset.tokenizer.vocabulary_size > model.backbone.vocabulary:
        raise DataError(
            f"the tokenizer has {dataset.tokenizer.vocabulary_size} ids, more than {model.backbone.name}.vocabulary = "
            f"{model.backbone.vocabulary}; raise it"
        )
    _check_learned_positions(config, model.backbone)
    return sample_index


def _check_learned_positions(config: DataConfig, backbone: BackboneConfig) -> None:
    """Raises DataError if a sample, which may fill a row, can exceed the table of learned positions."""
    if backbone.positions == "learned" and config.tokens > backbone.max_positions:
        raise DataError(
            f"a sample may fill a row of DataConfig.tokens = {config.tokens}, but {backbone.name}.max_positions = "
            f"{backbone.max_positions} learned positions are there; lower DataConfig.tokens to "
            f"{backbone.max_positions} or raise BackboneConfig.max_positions"
        )


def _make_pipeline(
    sample_stream: grain.MapDataset,
    sample_index: SampleIndex,
    config: DataConfig,
    model: ModelConfig,
    purpose: Literal["training", "evaluation"],
    order_rows: OrderRows | None,
) -> BatchPipeline:
    capacity = capacity_for_model(config.capacity, sample_index.sample_format)
    policy = GROUPING_POLICIES[config.grouping]
    planner = StepPlanner(
        sample_stream=sample_stream,
        sample_index=sample_index,
        capacity=capacity,
        rows_per_step=config.rows,
        window_size=config.window,
        epoch_length=_epoch_length(config, sample_index),
        group_samples=policy.make_algorithm(row_limits(capacity), config.rows),
        form_steps=policy.form_steps,
        seed=config.seed,
        strict=config.oversized == "error",
    )
    loader = BatchLoader(
        sample_index=sample_index,
        model=model,
        capacity=capacity,
        loss_weights=(config.language_weight, config.generator_weight),
        threads=config.threads,
    )
    return BatchPipeline(sample_index, planner, loader, order_rows, _fingerprint(config, sample_index, purpose))


def _run_pipeline(pipeline: BatchPipeline, config: DataConfig) -> BatchIterator:
    def start(state: PlannerState) -> grain.IterDataset:
        worker_count = max(config.workers, 1)
        batches_of_workers = [
            _StridedSteps(pipeline, state, worker, worker_count).map(pipeline.loader) for worker in range(worker_count)
        ]
        if not config.workers:
            return grain.experimental.ThreadPrefetchIterDataset(
                batches_of_workers[0], prefetch_buffer_size=config.prefetch
            )
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # grain's workers read flags, which a notebook never parses
        one_worker = grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=max(config.prefetch, 1))
        return grain.experimental.InterleaveIterDataset(
            [batches.mp_prefetch(one_worker) for batches in batches_of_workers], cycle_length=worker_count
        )

    refusals = RefusalLog(pipeline.sample_index.counts, config.max_refused_share)
    return BatchIterator(pipeline.sample_index, pipeline.fingerprint, refusals, start)


def _epoch_length(config: DataConfig, sample_index: SampleIndex) -> int:
    """Number of samples of the mixed stream until the first kind is exhausted; before that none is repeated."""
    shares = config.shares(sample_index.counts)
    total = sum(shares.values())
    return max(1, int(min(sample_index.counts[kind] * total / share for kind, share in shares.items())))


def _fingerprint(config: DataConfig, sample_index: SampleIndex, purpose: str) -> dict[str, Any]:
    """Everything that decides which samples form step k, as JSON values."""
    return {
        "order": purpose,
        **{name: getattr(config, name) for name in ("seed", "rows", "window", "grouping")},
        "mixture": [list(share) for share in config.shares(sample_index.counts).items()],
        **dataclasses.asdict(config.capacity),
        "samples_of_kinds": dict(sample_index.counts),
    }


def fingerprint_differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """The differences between two fingerprints, as `name theirs -> ours`; empty if there are none."""
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return ", ".join(f"{name} {theirs.get(name)!r} -> {ours.get(name)!r}" for name in names)


class _StridedSteps(grain.IterDataset[StepPlan]):
    """Every n-th step after a state."""

    def __init__(self, pipeline: BatchPipeline, state: PlannerState, first: int, stride: int) -> None:
        super().__init__()
        self._pipeline, self._state, self._first, self._stride = pipeline, state, first, stride

    def __iter__(self) -> grain.DatasetIterator[StepPlan]:
        return _StridedStepIterator(self._pipeline.steps(self._state), self._first, self._stride)


class _StridedStepIterator(grain.DatasetIterator[StepPlan]):
    """Iterator of `_StridedSteps`. Every plan carries the planner's state, so grain's own state is not used."""

    def __init__(self, plans: Iterator[StepPlan], first: int, stride: int) -> None:
        super().__init__()
        self._plans, self._skipped, self._stride = plans, first, stride

    def __next__(self) -> StepPlan:
        for _ in range(self._skipped):
            next(self._plans)
        self._skipped = self._stride - 1
        return next(self._plans)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("a planner continues from a PlannerState")
