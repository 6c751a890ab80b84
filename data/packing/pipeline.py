"""The pipeline: from a configuration, a model and a data set to batches, in pure functions.

Planner state -> step plan -> global batch. `training_batches` and `evaluation_batches` run them ahead of the step that
uses a batch; producers on other hosts run the same functions.
"""

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import grain
import numpy as np

from configs.architectures import BackboneConfig, ModelConfig
from configs.attention.rope import LongRopeScaling
from data.data_config import DataConfig
from data.datasets.dataset import Dataset, SampleIndex
from data.errors import DataError
from data.packing.batch_iterator import BatchIterator
from data.packing.batch_loader import BatchLoader
from data.packing.batch_requirements import WHOLE_BATCHES, BatchRequirements
from data.packing.fingerprint import step_fingerprint
from data.packing.global_batch import GlobalBatch, capacity_for_model
from data.packing.grouping.grouping_policies import (
    GROUPING_POLICIES,
    isf_thresholds,
    limited_quantities,
    row_limits,
)
from data.packing.rows.capacity_check import require_fitting_sample
from data.packing.rows.endless_order import endless_order
from data.packing.rows.refusals import RefusalLog
from data.packing.rows.row_planner import OrderRows, PlannerState, RowPlanner, StepPlan
from data.packing.workers import batches_ahead
from data.samples.sample_format import SampleFormat


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
    planner: RowPlanner
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
    requirements: BatchRequirements = WHOLE_BATCHES,
) -> BatchIterator:
    """Endless batches: every kind is shuffled anew each epoch, and kinds are mixed in proportion to `config.mixture`.

    Args:
        config: How samples become batches.
        model: The model that reads them.
        dataset: The samples.
        order_rows: Orders the rows of a step from the sizes of their samples; None to keep them as they are planned.
        requirements: Requirements of this process on the batches.

    Raises:
        DataError: The data set lacks a kind of the mixture, no sample of a kind fits into a row, or the model does not
            fit the pipeline or the vocabulary.
    """
    return _run_pipeline(training_pipeline(config, model, dataset, order_rows), config, requirements)


def training_pipeline(
    config: DataConfig, model: ModelConfig, dataset: Dataset, order_rows: OrderRows | None = None
) -> BatchPipeline:
    """The pipeline of `training_batches`, with its arguments and errors."""
    sample_index = make_sample_index(config, model, dataset)
    kinds = list(sample_index.counts)
    shares = config.shares(sample_index.counts)
    capacity = capacity_for_model(config.capacity, sample_index.sample_format)
    streams = []
    for kind in shares:
        sample_ids = sample_index.ids_of_kind(kind)
        # Each kind has a seed of its own: otherwise two kinds of the same size would come in the same order.
        seed = int(np.random.SeedSequence((config.seed, kinds.index(kind))).generate_state(1)[0])
        stream = endless_order(sample_ids, seed)
        first_samples = (typing.cast(int, stream[position]) for position in range(len(sample_ids)))
        require_fitting_sample(kind, first_samples, sample_index, capacity)
        streams.append(stream)
    sample_stream = grain.MapDataset.mix(streams, weights=list(shares.values()))
    return _make_pipeline(sample_stream, sample_index, config, model, "training", order_rows)


def evaluation_batches(
    config: DataConfig,
    model: ModelConfig,
    dataset: Dataset,
    kinds: Sequence[str] | None = None,
    requirements: BatchRequirements = WHOLE_BATCHES,
) -> BatchIterator:
    """One pass over all samples of some kinds, each exactly once; the last batch is filled up with empty rows.

    A sample that does not fit into a row is an error, whatever `config.oversized` says: a score over the others would
    be misleading.

    Args:
        config: How samples become batches.
        model: The model that reads them.
        dataset: The samples.
        kinds: Kinds to evaluate; `dataset.evaluated_kinds` by default.
        requirements: Requirements of this process on the batches.

    Raises:
        DataError: As `training_batches`; from the iterator, if a sample does not fit into a row.
    """
    kinds = dataset.evaluated_kinds if kinds is None else kinds
    mixture = tuple((kind, 1.0) for kind in kinds)
    config = dataclasses.replace(config, oversized="error", mixture=mixture, grouping="first_fit")
    sample_index = make_sample_index(config, model, dataset)
    sample_ids = [sample_id for kind in kinds for sample_id in sample_index.ids_of_kind(kind)]
    sample_stream = grain.MapDataset.source(sample_ids)
    pipeline = _make_pipeline(sample_stream, sample_index, config, model, "evaluation", None)
    return _run_pipeline(pipeline, config, requirements)


def make_sample_index(config: DataConfig, model: ModelConfig, dataset: Dataset) -> SampleIndex:
    """The samples of a data set under global ids, laid out for a model; errors as of `training_batches`."""
    sample_index = SampleIndex(dataset, SampleFormat.for_model(model, config.encoder_capacities))
    for kind in config.shares(sample_index.counts):
        sample_index.ids_of_kind(kind)
    if dataset.tokenizer.vocabulary_size > model.backbone.vocabulary:
        raise DataError(
            f"the tokenizer has {dataset.tokenizer.vocabulary_size} ids, more than {model.backbone.name}.vocabulary = "
            f"{model.backbone.vocabulary}; raise it"
        )
    _check_positions(config, model.backbone)
    return sample_index


def _check_positions(config: DataConfig, backbone: BackboneConfig) -> None:
    """Raises DataError if a sample, which may fill a row, can have more positions than the backbone is for."""
    if backbone.positions == "learned" and config.tokens > backbone.max_positions:
        raise DataError(
            f"a sample may fill a row of DataConfig.tokens = {config.tokens}, but {backbone.name}.max_positions = "
            f"{backbone.max_positions} learned positions are there; lower DataConfig.tokens to "
            f"{backbone.max_positions} or raise BackboneConfig.max_positions"
        )
    scaling = backbone.rope_scaling
    if isinstance(scaling, LongRopeScaling) and not scaling.long and config.tokens > scaling.original_positions:
        raise DataError(
            f"a sample may fill a row of DataConfig.tokens = {config.tokens}, and the rotary positions of "
            f"{backbone.name} are those of up to LongRopeScaling.original_positions = {scaling.original_positions}; "
            "lower DataConfig.tokens or set LongRopeScaling.long"
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
    policy, limits = GROUPING_POLICIES[config.grouping], row_limits(capacity)
    thresholds = isf_thresholds(limited_quantities(capacity), limits, dict(config.isf_thresholds))
    samples = sum(sample_index.counts[kind] for kind in config.shares(sample_index.counts))
    planner = RowPlanner(
        sample_stream=sample_stream,
        sample_index=sample_index,
        capacity=capacity,
        rows_per_step=config.rows,
        window_size=min(config.window, samples),  # a larger one would only mix more repetitions of samples
        epoch_length=samples,
        group_samples=policy.make_algorithm(limits, thresholds, config.rows),
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
    return BatchPipeline(sample_index, planner, loader, order_rows, step_fingerprint(config, sample_index, purpose))


def _run_pipeline(pipeline: BatchPipeline, config: DataConfig, requirements: BatchRequirements) -> BatchIterator:
    loader = dataclasses.replace(pipeline.loader, needed=requirements.needed, phases=requirements.phases)

    def start(state: PlannerState) -> grain.IterDataset[GlobalBatch]:
        return batches_ahead(
            pipeline.steps, loader, requirements.prepare, state, workers=config.workers, prefetch=config.prefetch
        )

    refusals = RefusalLog(pipeline.sample_index.counts, config.max_refused_share)
    return BatchIterator(pipeline.sample_index, pipeline.fingerprint, refusals, start)
