"""Where a run's batches come from: this host, or producers elsewhere."""

from collections.abc import Sequence

from data.datasets.dataset import Dataset
from data.packing.pipeline import BatchIterator, training_batches
from data.packing.row_order_request import RowOrderRequest
from data.producers.client import remote_batches
from data.samples.sample_format import SampleFormat
from mmjax.training.config import TrainConfig


def open_batches(
    config: TrainConfig, source: Dataset, order: RowOrderRequest | None = None, rows: Sequence[int] | None = None
) -> BatchIterator:
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
        return remote_batches(data, model, source, config.producers, config.producer_timeout, order, rows)
    form = SampleFormat.for_model(model, data.patches, data.frames)
    return training_batches(data, model, source, order.make_row_order(model, form) if order else None, rows)
