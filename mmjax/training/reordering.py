"""Reordering the rows of every step for the plan that runs it: by the producers of batches, or by the training process.

DistTrain reorders where samples are prepared, MMScale where they are trained on (arXiv 2408.04275). Rows move and no
sum over a batch changes, so that losses and gradients stay what they are.
"""

import dataclasses
from collections.abc import Callable

from configs.clusters import CLUSTERS, cluster_of_device_kind
from data.packing.global_batch import GlobalBatch
from data.packing.row_order import reorder_rows
from data.packing.row_order_request import RowOrderRequest
from mmjax.training.config import TrainConfig
from mmjax.training.row_loads import filled_row_loads
from sharding.plans.plan import Plan
from sharding.specs.modules import module_graph


@dataclasses.dataclass(frozen=True, eq=False)
class Reordering:
    """Where rows are reordered.

    Attributes:
        ahead: Asked of whoever makes batches; None where that is not asked for.
        here: For the training process; returns the batch as it is where that is not asked for.
        needs_all: Whether `here` must be given every row, also those that the process does not train on.
    """

    producer_request: RowOrderRequest | None
    reorder_batch: Callable[[GlobalBatch], GlobalBatch]
    needs_all_rows: bool = False


def make_reordering(config: TrainConfig, plan: Plan, device_kind: str) -> Reordering:
    """What a run's configuration asks for, by a roofline of the devices that it runs on."""
    if config.reordering == "none":
        return Reordering(None, lambda batch: batch)
    cluster = cluster_of_device_kind(device_kind) or CLUSTERS["cpu"]
    asked = RowOrderRequest(plan, cluster.name, config.trainable, config.reordering)
    if config.reorder_in == "producer":
        return Reordering(asked, lambda batch: batch)
    arranger, graph = asked.arranger(config.model), module_graph(config.model)

    def here(batch: GlobalBatch) -> GlobalBatch:
        return reorder_rows(batch, arranger.row_order(filled_row_loads(batch.arrays, graph)))

    return Reordering(None, here, needs_all_rows=True)
