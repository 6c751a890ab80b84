"""Batches made by producers elsewhere (`data.service`), in the order and with the numbers they would have here."""

import os
from collections.abc import Sequence

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.errors import DataError
from data.order_requests import OrderRequest
from data.pipeline import Batches, training_recipe
from data.refusals import Refusals
from data.remote_producer import check_address
from data.remote_steps import RemoteSteps
from data.source import Source
from data.step_plans import Place
from data.step_requests import StepRequest, full_identity

TOKEN_VARIABLE = "MMJAX_SERVICE_TOKEN"
"""The environment variable that holds the producers' token, which thus stands in no file that a run writes."""


def remote_batches(
    config: DataConfig,
    model: ModelConfig,
    source: Source,
    producers: Sequence[str],
    patience: float = 120.0,
    order: OrderRequest | None = None,
    rows: Sequence[int] | None = None,
) -> Batches:
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
    if not 0 < patience < float("inf"):
        raise DataError(f"the patience with producers is {patience} s; it must be above zero, and finite")
    recipe = training_recipe(config, model, source)
    identity = full_identity(recipe, config)
    token = os.environ.get(TOKEN_VARIABLE, "")

    def start(place: Place) -> RemoteSteps:
        asked = StepRequest(identity, place, 0, order, None if rows is None else tuple(rows))
        return RemoteSteps(producers, token, asked, max(config.prefetch, 1), patience)

    refusals = Refusals(recipe.catalogue.counts, config.max_refused_share)
    return Batches(recipe.catalogue, recipe.identity, refusals, start)
