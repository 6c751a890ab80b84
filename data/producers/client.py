"""Batches made by producers elsewhere (`mmjax.serve_data`), in the order and with the numbers they would have here."""

import os
from collections.abc import Sequence

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.datasets.dataset import Dataset
from data.errors import DataError
from data.packing.pipeline import BatchIterator, training_recipe
from data.packing.refusals import RefusalLog
from data.packing.row_order import RowOrderRequest
from data.packing.step_planner import PlannerState
from data.producers.connection import check_address
from data.producers.remote_batches import RemoteBatches
from data.producers.step_request import StepRequest, batch_fingerprint

TOKEN_VARIABLE = "MMJAX_SERVICE_TOKEN"
"""The environment variable that holds the producers' token, which thus stands in no file that a run writes."""


def remote_batches(
    config: DataConfig,
    model: ModelConfig,
    dataset: Dataset,
    producers: Sequence[str],
    timeout: float = 120.0,
    row_order: RowOrderRequest | None = None,
    rows: Sequence[int] | None = None,
) -> BatchIterator:
    """The batches of `training_batches`, from producers of the same configuration.

    The source is opened here too, for its counts and its tokenizer; no step is planned, and none decoded. The states
    are the same ones: a run may go on with producers, with others, or without. `config.prefetch` requests are under
    way to each producer, at least one; they make nothing that is not asked for.

    Args:
        config, model, source: As of `training_batches`.
        producers: `host:port` of each, or `grpc+tls://host:port`.
        patience: Seconds that a step may take, and that no producer may answer before that is an error.
        order: In which producers put the rows of a step; None for as they are planned.
        rows: Rows that this host needs, in that order; producers leave the others empty. None for all.

    Raises:
        DataError: An address that is none or comes twice, or as `training_batches`; from the iterator, what a producer
            refuses, or that all of them are gone.
    """
    for address in producers:
        check_address(address)
    if not producers or len(set(producers)) < len(producers):
        raise DataError(f"the producers are {', '.join(producers) or 'none'}; name each once")
    if not 0 < timeout < float("inf"):
        raise DataError(f"the patience with producers is {timeout} s; it must be above zero, and finite")
    recipe = training_recipe(config, model, dataset)
    identity = batch_fingerprint(recipe, config)
    token = os.environ.get(TOKEN_VARIABLE, "")

    def start(place: PlannerState) -> RemoteBatches:
        asked = StepRequest(identity, place, 0, row_order, None if rows is None else tuple(rows))
        return RemoteBatches(producers, token, asked, max(config.prefetch, 1), timeout)

    refusals = RefusalLog(recipe.sample_index.counts, config.max_refused_share)
    return BatchIterator(recipe.sample_index, recipe.fingerprint, refusals, start)
