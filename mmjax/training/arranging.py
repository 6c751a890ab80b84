"""Reordering the rows of every step for the plan that runs it: by the producers of batches, or by the training process.

DistTrain reorders where samples are prepared, MMScale where they are trained on (arXiv 2408.04275). Rows move and no
sum over a batch changes, so that losses and gradients stay what they are.
"""

import dataclasses
from collections.abc import Callable

from configs.clusters import CLUSTERS, cluster_of
from data.arranging import with_rows_in_order
from data.batch import GlobalBatch
from data.order_requests import OrderRequest
from mmjax.training.config import TrainConfig
from mmjax.training.workload import filled_rows
from sharding.plan import Plan
from sharding.specs import module_graph


@dataclasses.dataclass(frozen=True, eq=False)
class Reordering:
    """Where rows are reordered.

    Attributes:
        ahead: Asked of whoever makes batches; None where that is not asked for.
        here: For the training process; returns the batch as it is where that is not asked for.
        needs_all: Whether `here` must be given every row, also those that the process does not train on.
    """

    ahead: OrderRequest | None
    here: Callable[[GlobalBatch], GlobalBatch]
    needs_all: bool = False


def make_reordering(config: TrainConfig, plan: Plan, device_kind: str) -> Reordering:
    """What a run's configuration asks for, by a roofline of the devices that it runs on."""
    if config.reordering == "none":
        return Reordering(None, lambda batch: batch)
    cluster = cluster_of(device_kind) or CLUSTERS["cpu"]
    asked = OrderRequest(plan, cluster.name, config.trainable, config.reordering)
    if config.reorder_in == "producer":
        return Reordering(asked, lambda batch: batch)
    arranger, graph = asked.arranger(config.model), module_graph(config.model)

    def here(batch: GlobalBatch) -> GlobalBatch:
        return with_rows_in_order(batch, arranger.order(filled_rows(batch.arrays, graph)))

    return Reordering(None, here, needs_all=True)
