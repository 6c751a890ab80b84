"""Where a run's batches come from: this host, or producers elsewhere."""

from collections.abc import Sequence

from data.formats import SampleFormat
from data.order_requests import OrderRequest
from data.pipeline import Batches, training_batches
from data.remote import remote_batches
from data.source import Source
from mmjax.training.config import TrainConfig


def open_batches(
    config: TrainConfig, source: Source, order: OrderRequest | None = None, rows: Sequence[int] | None = None
) -> Batches:
    """The same batches, made by `TrainConfig.producers` if there are any, else here.

    Args:
        config: The run's.
        source: Its training split.
        order: Of a step's rows; None for as they are planned.
        rows: Rows that this process needs; the others stay empty. None for all.

    Raises:
        DataError: As `training_batches` and `remote_batches`.
    """
    data, model = config.data, config.model
    if config.producers:
        return remote_batches(data, model, source, config.producers, config.producer_patience, order, rows)
    form = SampleFormat.of(model, data.patches, data.frames)
    return training_batches(data, model, source, order.row_order(model, form) if order else None, rows)
