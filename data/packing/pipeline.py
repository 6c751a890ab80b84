"""From a source of samples to global batches: planned, decoded and packed ahead of the step that asks for them.

Grain runs it: planning and decoding in a thread, or in worker processes that take every n-th step each. The state of
the whole is where planning stood behind the last batch handed out, whatever was made ahead, by however many workers.
"""

import collections
import dataclasses
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, SupportsIndex, runtime_checkable

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


class BatchIterator(Iterator[GlobalBatch]):
    """Global batches of one source; make it with `training_batches` or `evaluation_batches`.

    `get_state` belongs to the batches handed out so far, whatever was made ahead; it is a small JSON value, and an
    iterator of the same configuration and source that is given it continues with exactly the batches that remain.
    """

    def __init__(
        self,
        catalogue: SampleIndex,
        identity: dict[str, Any],
        refusals: RefusalLog,
        start: Callable[[PlannerState], Iterable[GlobalBatch]],
    ) -> None:
        """Starts at the beginning.

        Args:
            catalogue: Names the kinds of samples, and loads them for `samples`.
            identity: All that decides which samples form step k, as JSON gives it back.
            refusals: Notes what batches bring of refused samples.
            start: Makes the batches that come behind a place; their iterator has `close`.
        """
        self._catalogue, self._identity, self._refusals, self._start = catalogue, identity, refusals, start
        self._batches = 0
        self._samples: collections.Counter[str] = collections.Counter()
        self._place = PlannerState()
        self._closed = False
        self._open: list[ClosableIterator] = []
        # Grain 0.2.18 aborts the process if a prefetching thread, or an iterator, outlives the interpreter's modules.
        self._finalizer = weakref.finalize(self, _close, self._open)

    @property
    def sample_format(self) -> SampleFormat:
        """How samples are laid out."""
        return self._catalogue.sample_format

    @property
    def _iterator(self) -> "ClosableIterator":
        if self._closed:
            raise DataError("these batches are closed; make them anew and restore the state")
        if not self._open:
            self._open.append(iter(self._start(self._place)))
        return self._open[0]

    def __next__(self) -> GlobalBatch:
        batch = next(self._iterator)
        self._refusals.add(batch.refused)
        self._batches += 1
        self._place = PlannerState.from_json(batch.state)
        self._samples.update(self._catalogue.kind_of(number) for number in batch.sample_ids[batch.sample_ids >= 0])
        return batch

    def get_state(self) -> dict[str, Any]:
        """The state after the last batch handed out."""
        return {
            "fingerprint": self._identity,
            "batches": self._batches,
            "samples": dict(self._samples),
            "planner": self._place.to_json(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken.

        Raises:
            DataError: The state of another configuration or source; names what differs.
        """
        details = fingerprint_differences(state["fingerprint"], self._identity)
        if details:
            raise DataError(f"data state of another configuration: {details}; restore with the one it was saved under")
        _close(self._open)
        self._batches = state["batches"]
        self._samples = collections.Counter(state["samples"])
        self._place = PlannerState.from_json(state["planner"])

    def counters(self) -> dict[str, Any]:
        """Batches and samples by kind handed out so far, before a restore too; what this process refused."""
        return {"batches": self._batches, "samples": dict(self._samples), **self._refusals.counts()}

    def write_refused(self, folder: str | os.PathLike[str]) -> None:
        """Writes which samples this process refused, and why: `unreadable.jsonl`, `oversized.jsonl`."""
        self._refusals.write(folder)

    def load_samples(self, ids: Iterable[SupportsIndex]) -> list[Sample]:
        """The samples of these global ids, unpacked: what a step was made of."""
        return [self._catalogue.load(number) for number in ids]

    def close(self) -> None:
        """Ends the threads and workers; so does losing the last reference, or the end of the process."""
        self._closed = True
        self._finalizer()


@runtime_checkable
class ClosableIterator(Protocol):
    """Batches from a place on, whose threads and processes end with `close`."""

    def __iter__(self) -> Iterator[GlobalBatch]: ...

    def __next__(self) -> GlobalBatch: ...

    def close(self) -> None: ...


def _close(iterators: list[ClosableIterator]) -> None:
    """Ends the iterators' threads and lets go of the iterators."""
    while iterators:
        iterators.pop().close()


@dataclasses.dataclass(frozen=True, eq=False)
class BatchRecipe:
    """How each step is made, whoever makes it: a plan is a function of the planner and a place, a batch of its plan.

    Attributes:
        catalogue: The samples.
        planner: Which of them form a step.
        loader: Decodes a planned step.
        arrange: The order of a step's rows; None as planned.
        identity: All that decides which samples form step k, as JSON gives it back.
    """

    sample_index: SampleIndex
    planner: StepPlanner
    loader: BatchLoader
    order_rows: OrderRows | None
    fingerprint: dict[str, Any]

    def steps(self, place: PlannerState) -> Iterator[StepPlan]:
        """The steps behind a place, their rows in order."""
        for plan in self.planner.steps(place):
            yield plan.reordered(self.order_rows) if self.order_rows else plan


def training_batches(
    config: DataConfig,
    model: ModelConfig,
    dataset: Dataset,
    order_rows: OrderRows | None = None,
    rows: Sequence[int] | None = None,
) -> BatchIterator:
    """Endless batches: every kind shuffled anew each epoch, the kinds mixed in the proportion of `config.mixture`.

    Args:
        config: How samples become batches.
        model: What it feeds.
        source: Where they come from.
        arrange: The order of a step's rows, from the sizes of their samples; it moves rows and changes no sum.
        rows: Rows that this host needs, as the arrangement leaves them; the others stay empty. None for all.

    Raises:
        DataError: A kind that the source does not have, or a model that this pipeline or vocabulary does not fit.
    """
    recipe = training_recipe(config, model, dataset, order_rows)
    return _batches(dataclasses.replace(recipe, loader=dataclasses.replace(recipe.loader, rows=rows)), config)


def training_recipe(
    config: DataConfig, model: ModelConfig, source: Dataset, arrange: OrderRows | None = None
) -> BatchRecipe:
    """How the steps of `training_batches` are made, for whoever makes them elsewhere; arguments and errors are its."""
    catalogue = make_sample_index(config, model, source)
    kinds = list(catalogue.counts)
    shares = config.shares(catalogue.counts)
    orders = []
    for kind in shares:
        ids = catalogue.ids_of_kind(kind)
        # A seed of its own, or two kinds of the same size would come in the same order.
        seed = int(np.random.SeedSequence((config.seed, kinds.index(kind))).generate_state(1)[0])
        orders.append(grain.MapDataset.range(ids.start, ids.stop).seed(seed).shuffle().repeat())
    order = grain.MapDataset.mix(orders, weights=list(shares.values()))
    return _recipe(order, catalogue, config, model, "training", arrange)


def evaluation_batches(
    config: DataConfig, model: ModelConfig, dataset: Dataset, kinds: Sequence[str] | None = None
) -> BatchIterator:
    """One pass over all samples of `kinds`, each exactly once; the last batch is filled with empty rows.

    By default the kinds are those that the source lets judge.

    A sample that fits no row is an error here whatever the configuration says: a score over the rest would flatter.

    Raises:
        DataError: As `training_batches`; from the iterator, a sample larger than a row.
    """
    kinds = dataset.evaluated_kinds if kinds is None else kinds
    mixture = tuple((kind, 1.0) for kind in kinds)
    config = dataclasses.replace(config, oversized="error", mixture=mixture, grouping="first_fit")
    catalogue = make_sample_index(config, model, dataset)
    order = grain.MapDataset.source(np.concatenate([catalogue.ids_of_kind(kind) for kind in kinds]))
    return _batches(_recipe(order, catalogue, config, model, "evaluation", None), config)


def make_sample_index(config: DataConfig, model: ModelConfig, source: Dataset) -> SampleIndex:
    """The source's samples under global ids, laid out for a model; raises as `training_batches`."""
    catalogue = SampleIndex(source, SampleFormat.for_model(model, config.patches, config.frames))
    for kind in config.shares(catalogue.counts):
        catalogue.ids_of_kind(kind)
    if source.tokenizer.vocabulary_size > model.backbone.vocabulary:
        raise DataError(
            f"the tokenizer has {source.tokenizer.vocabulary_size} ids, more than {model.backbone.name}.vocabulary = "
            f"{model.backbone.vocabulary}; raise it"
        )
    _require_positions(config, model.backbone)
    return catalogue


def _require_positions(config: DataConfig, backbone: BackboneConfig) -> None:
    """A sample may fill a row; positions behind a learned table would all read its last entry, unseen."""
    if backbone.positions == "learned" and config.tokens > backbone.max_positions:
        raise DataError(
            f"a sample may fill a row of DataConfig.tokens = {config.tokens}, but {backbone.name}.longest = "
            f"{backbone.max_positions} learned positions are there; lower DataConfig.tokens to {backbone.max_positions} or raise "
            "BackboneConfig.max_positions"
        )


def _recipe(
    order: grain.MapDataset,
    catalogue: SampleIndex,
    config: DataConfig,
    model: ModelConfig,
    purpose: str,
    arrange: OrderRows | None,
) -> BatchRecipe:
    capacity = capacity_for_model(config.capacity, catalogue.sample_format)
    planner = StepPlanner(
        sample_stream=order,
        sample_index=catalogue,
        capacity=capacity,
        rows=config.rows,
        window=config.window,
        epoch=_epoch(config, catalogue),
        group_samples=GROUPING_POLICIES[config.grouping].make_algorithm(row_limits(capacity), config.rows),
        form_steps=GROUPING_POLICIES[config.grouping].form_steps,
        seed=config.seed,
        strict=config.oversized == "error",
    )
    weights = (config.language_weight, config.generator_weight)
    loader = BatchLoader(catalogue, model, capacity, weights, config.threads)
    return BatchRecipe(catalogue, planner, loader, arrange, _identity(config, catalogue, purpose))


def _batches(recipe: BatchRecipe, config: DataConfig) -> BatchIterator:
    def start(place: PlannerState) -> grain.IterDataset:
        shares = [
            _Steps(recipe, place, worker, max(config.workers, 1)).map(recipe.loader)
            for worker in range(max(config.workers, 1))
        ]
        if not config.workers:
            return grain.experimental.ThreadPrefetchIterDataset(shares[0], prefetch_buffer_size=config.prefetch)
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # in a notebook nobody did, and grain's workers read flags
        ahead = grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=max(config.prefetch, 1))
        return grain.experimental.InterleaveIterDataset(
            [share.mp_prefetch(ahead) for share in shares], cycle_length=len(shares)
        )

    refusals = RefusalLog(recipe.sample_index.counts, config.max_refused_share)
    return BatchIterator(recipe.sample_index, recipe.fingerprint, refusals, start)


def _epoch(config: DataConfig, catalogue: SampleIndex) -> int:
    """Samples of the mixed stream in which that kind is once that comes round first."""
    shares = config.shares(catalogue.counts)
    total = sum(shares.values())
    return max(1, int(min(catalogue.counts[kind] * total / share for kind, share in shares.items())))


def _identity(config: DataConfig, catalogue: SampleIndex, purpose: str) -> dict[str, Any]:
    """All that decides which samples form step k, as JSON gives it back."""
    capacity = dataclasses.asdict(config.capacity)
    mixture = [list(part) for part in config.shares(catalogue.counts).items()]
    names = ("seed", "rows", "window", "grouping")
    chosen = {name: getattr(config, name) for name in names}
    return {"order": purpose, **chosen, "mixture": mixture, **capacity, "samples_of_kinds": dict(catalogue.counts)}


def fingerprint_differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """What differs between two identities, as `name theirs -> ours`; empty if nothing does."""
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return ", ".join(f"{name} {theirs.get(name)!r} -> {ours.get(name)!r}" for name in names)


class _Steps(grain.IterDataset[StepPlan]):
    """Every n-th step behind a place."""

    def __init__(self, recipe: BatchRecipe, place: PlannerState, first: int, stride: int) -> None:
        super().__init__()
        self._recipe, self._place, self._first, self._stride = recipe, place, first, stride

    def __iter__(self) -> grain.DatasetIterator[StepPlan]:
        return _StepIterator(self._recipe.steps(self._place), self._first, self._stride)


class _StepIterator(grain.DatasetIterator[StepPlan]):
    """The iterator of `_Steps`; where it stands is told by every plan, so that grain's own state is not used."""

    def __init__(self, plans: Iterator[StepPlan], first: int, stride: int) -> None:
        super().__init__()
        self._plans, self._skip, self._stride = plans, first, stride

    def __next__(self) -> StepPlan:
        for _ in range(self._skip):
            next(self._plans)
        self._skip = self._stride - 1
        return next(self._plans)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("a planner continues from a Place")
