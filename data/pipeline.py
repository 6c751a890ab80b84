"""From a source of samples to global batches: seeded shuffle, mixture, packing, prefetch, checkpointable.

Which samples form step k depends on the configuration, the seed and the history alone. The whole state is a few
numbers: the place in the endless shuffled stream and the rows already handed out of the last packing.
"""

import collections
import dataclasses
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

import grain
import numpy as np

from configs.architectures import ModelConfig
from data.batch import GlobalBatch, global_batch
from data.errors import BadSampleError, DataError
from data.packing import Capacity, pack, packable, stack
from data.report import Refusals
from data.samples import Sample, SampleFormat
from data.source import Catalogue, Source

OVERSIZED = ("skip", "error")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """How samples become global batches.

    Attributes:
        rows: Rows n of a global batch.
        tokens, patches, images, samples: What one row holds at most: backbone tokens, encoder patches, generated
            images, samples.
        mixture: (kind, weight): in which proportion the samples of each kind come.
        seed: Order of the samples.
        language_weight, generator_weight: What the losses count in their sum.
        max_corrupt_share: Share of the source's images that may be unreadable; they are skipped, more are an error.
        oversized: `skip` counts and logs a sample that fits no row; `error` stops at it.
        threads: Threads that load samples ahead; 0 loads where batches are made, which is fastest for small images.
        prefetch: Batches made ahead, in a thread of their own; 0 makes each when it is asked for.
    """

    rows: int = 8
    tokens: int = 256
    patches: int = 128
    images: int = 2
    samples: int = 16
    mixture: tuple[tuple[str, float], ...] = (("vqa", 1.0), ("description", 0.5), ("text", 0.05))
    seed: int = 0
    language_weight: float = 1.0
    generator_weight: float = 1.0
    max_corrupt_share: float = 0.01
    oversized: str = "skip"
    threads: int = 0
    prefetch: int = 2

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("seed", 0), ("threads", 0), ("prefetch", 0)):
            if getattr(self, name) < least:
                raise DataError(f"DataConfig.{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("language_weight", "generator_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise DataError(f"DataConfig.{name} is {getattr(self, name)}; it must be zero or more, and finite")
        if not 0 <= self.max_corrupt_share < 1:
            raise DataError(f"DataConfig.max_corrupt_share is {self.max_corrupt_share}; it must lie in [0, 1)")
        if self.oversized not in OVERSIZED:
            raise DataError(f"DataConfig.oversized is {self.oversized!r}; choose one of {', '.join(OVERSIZED)}")
        kinds = [kind for kind, _ in self.mixture]
        if (
            not kinds
            or len(set(kinds)) < len(kinds)
            or not all(0 < weight < float("inf") for _, weight in self.mixture)
        ):
            raise DataError(f"DataConfig.mixture is {self.mixture}; give each kind once, with a weight above zero")
        self.capacity  # noqa: B018  (checks itself)

    @property
    def capacity(self) -> Capacity:
        """What one row holds at most."""
        return Capacity(self.tokens, self.patches, self.images, self.samples)


class Batches(Iterator[GlobalBatch]):
    """Global batches of one source; make it with `training_batches` or `evaluation_batches`.

    `get_state` belongs to the batches handed out so far, whatever was made ahead; it is a small JSON value, and an
    iterator of the same configuration and source that is given it continues with exactly the batches that remain.
    """

    def __init__(
        self,
        order: grain.MapDataset,
        catalogue: Catalogue,
        config: DataConfig,
        model: ModelConfig,
        identity: dict[str, Any],
    ) -> None:
        self._catalogue = catalogue
        self._identity = identity
        self._refusals = Refusals(catalogue.source.image_count, config.max_corrupt_share, catalogue.sizes)
        self._batches = 0
        self._samples: collections.Counter[str] = collections.Counter()
        self._open = [iter(_dataset(order, catalogue, self._refusals, config, model))]
        # Grain 0.2.18 aborts the process if a prefetching thread, or an iterator, outlives the interpreter's modules.
        self._finalizer = weakref.finalize(self, _close, self._open)

    @property
    def _iterator(self) -> grain.DatasetIterator:
        if not self._open:
            raise DataError("these batches are closed; make them anew and restore the state")
        return self._open[0]

    def __next__(self) -> GlobalBatch:
        batch = next(self._iterator)
        self._batches += 1
        self._samples.update(self._catalogue.kind(number) for number in batch.sample_ids[batch.sample_ids >= 0])
        return batch

    def get_state(self) -> dict[str, Any]:
        """The state after the last batch handed out."""
        return {
            "identity": self._identity,
            "batches": self._batches,
            "samples": dict(self._samples),
            "stream": self._iterator.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken.

        Raises:
            DataError: The state of another configuration or source; names what differs.
        """
        theirs = state["identity"]
        differing = [name for name in {**self._identity, **theirs} if self._identity.get(name) != theirs.get(name)]
        if differing:
            details = ", ".join(f"{name} {theirs.get(name)!r} -> {self._identity.get(name)!r}" for name in differing)
            raise DataError(f"data state of another configuration: {details}; restore with the one it was saved under")
        self._batches = state["batches"]
        self._samples = collections.Counter(state["samples"])
        self._iterator.set_state(state["stream"])

    def counters(self) -> dict[str, Any]:
        """Batches and samples by kind handed out so far, before a restore too; what this process refused."""
        return {
            "batches": self._batches,
            "samples": dict(self._samples),
            "corrupt_images": self._refusals.corrupt_images,
            "oversized_samples": self._refusals.oversized_samples,
        }

    def samples(self, ids: Iterable[SupportsIndex]) -> list[Sample]:
        """The samples of these global ids, unpacked: what a step was made of."""
        return [self._catalogue.load(number) for number in ids]

    def close(self) -> None:
        """Ends the prefetching threads; so does losing the last reference, or the end of the process."""
        self._finalizer()


def _close(iterators: list[grain.DatasetIterator]) -> None:
    """Ends the iterators' threads and lets go of the iterators."""
    while iterators:
        iterators.pop().close()


def training_batches(config: DataConfig, model: ModelConfig, source: Source) -> Batches:
    """Endless batches: every kind shuffled anew each epoch, the kinds mixed in the proportion of `config.mixture`.

    Raises:
        DataError: A kind that the source does not have, or a model that this pipeline or vocabulary does not fit.
    """
    catalogue = _catalogue(config, model, source)
    kinds = list(catalogue.sizes)
    orders = []
    for kind, _ in config.mixture:
        ids = catalogue.ids(kind)
        # A seed of its own, or two kinds of the same size would come in the same order.
        seed = int(np.random.SeedSequence((config.seed, kinds.index(kind))).generate_state(1)[0])
        orders.append(grain.MapDataset.range(ids.start, ids.stop).seed(seed).shuffle().repeat())
    order = grain.MapDataset.mix(orders, weights=[weight for _, weight in config.mixture])
    return Batches(order, catalogue, config, model, _identity(config, catalogue, "training"))


def evaluation_batches(
    config: DataConfig, model: ModelConfig, source: Source, kinds: Sequence[str] = ("vqa",)
) -> Batches:
    """One pass over all samples of `kinds`, each exactly once, in order; the last batch is filled with empty rows.

    A sample that fits no row is an error here whatever the configuration says: a score over the rest would flatter.

    Raises:
        DataError: As `training_batches`; from the iterator, a sample larger than a row.
    """
    config = dataclasses.replace(config, oversized="error", mixture=tuple((kind, 1.0) for kind in kinds))
    catalogue = _catalogue(config, model, source)
    order = grain.MapDataset.source(np.concatenate([catalogue.ids(kind) for kind in kinds]))
    return Batches(order, catalogue, config, model, _identity(config, catalogue, "evaluation"))


def _catalogue(config: DataConfig, model: ModelConfig, source: Source) -> Catalogue:
    catalogue = Catalogue(source, SampleFormat.of(model, config.patches))
    for kind, _ in config.mixture:
        catalogue.ids(kind)
    if source.tokenizer.size > model.backbone.vocabulary:
        raise DataError(
            f"the tokenizer has {source.tokenizer.size} ids, more than {model.backbone.name}.vocabulary = "
            f"{model.backbone.vocabulary}; raise it"
        )
    return catalogue


def _identity(config: DataConfig, catalogue: Catalogue, order: str) -> dict[str, Any]:
    """All that decides which samples form step k, as JSON gives it back."""
    capacity = dataclasses.asdict(config.capacity)
    mixture = [list(part) for part in config.mixture]
    return {"order": order, "seed": config.seed, "rows": config.rows, "mixture": mixture, **capacity} | {
        "samples_of_kinds": dict(catalogue.sizes)
    }


def _dataset(
    order: grain.MapDataset, catalogue: Catalogue, refusals: Refusals, config: DataConfig, model: ModelConfig
) -> grain.IterDataset:
    """The chain of grain transformations from global ids to batches."""

    def load(number: SupportsIndex) -> dict[str, np.ndarray] | None:
        try:
            sample = catalogue.load(number)
        except BadSampleError as error:
            refusals.corrupt(int(number), error)
            return None
        excess = config.capacity.excess(sample)
        if excess is None:
            return packable(sample)
        if config.oversized == "error":
            raise DataError(f"sample {number} ({sample.kind}): {excess}")
        refusals.oversized(sample.id, sample.kind, excess)
        return None

    def batch(rows: Sequence[dict[str, np.ndarray]]) -> GlobalBatch:
        packed = stack(rows, config.rows, config.capacity, catalogue.form)
        return global_batch(packed, model, config.language_weight, config.generator_weight)

    # Grain leaves out the Nones, which stand for refused samples.
    reading = grain.ReadOptions(num_threads=config.threads, prefetch_buffer_size=8 * config.threads)
    samples = order.map(load).to_iter_dataset(reading)
    rows = pack(samples, config.capacity, config.rows)
    batches = rows.batch(config.rows, batch_fn=batch)
    return grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=config.prefetch)
