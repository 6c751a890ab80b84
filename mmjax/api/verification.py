"""Comparison of layouts with one device, for programs and notebooks."""

import dataclasses
from collections.abc import Mapping

import jax

from data.packing.pipeline import training_batches
from mmjax.training.config import TrainConfig
from mmjax.training.verification.comparison import LayoutReport, verify_layouts
from mmjax.training.verification.layouts import NamedLayout, default_layouts
from mmjax.training.verification.reference import run_reference
from sharding.plans.plan import Plan, check_plan
from sharding.specs.modules import module_graph


def verify(config: TrainConfig, plans: Mapping[str, Plan] | None = None, steps: int = 1) -> list[LayoutReport]:
    """Compares losses and gradients on plans, in float32, with those of plain jax on one device.

        reports = mmjax.verify(mmjax.load("tiny.gin"), {"mine": plan})
        assert all(report.ok for report in reports)

    Args:
        config: The run: its model, data, seed and transport of hops.
        plans: Plans by name; by default layouts of every kind that these devices and this model allow.
        steps: Steps; between them, training on one device moves the parameters.

    Raises:
        PlanError: A plan cannot hold the model or the batch.
    """
    model = dataclasses.replace(config.model, dtype="float32")
    graph, rows, devices = module_graph(model), config.data.rows, jax.device_count()
    if plans is None:
        layouts, _ = default_layouts(graph, rows, devices)
    else:
        for plan in plans.values():
            check_plan(plan, graph, rows, devices)
        layouts = [NamedLayout(name, plan, config.transport) for name, plan in plans.items()]
    batches = training_batches(config.data, model, config.dataset("train"))
    try:
        with jax.default_matmul_precision("highest"):
            reference = run_reference(model, config.data, batches, steps, config.seed)
            return list(verify_layouts(model, layouts, reference, config.seed))
    finally:
        batches.close()
