"""`mmjax.verify`: comparison of layouts with plain jax on one device, for programs and notebooks."""

from collections.abc import Mapping

import jax

from mmjax.training.config import TrainConfig
from mmjax.training.metrics.activity import VERIFYING, display_call
from mmjax.training.verification.configured_run import layouts_to_verify, verify_run
from mmjax.training.verification.layouts.divided_plans import GlobalRows
from mmjax.training.verification.reports import LayoutReport
from sharding.plans.plan import Plan


def verify(config: TrainConfig, plans: Mapping[str, Plan] | None = None, steps: int = 1) -> list[LayoutReport]:
    """Compares losses, gradients, an update and an evaluation on plans with the results of plain jax on one device.

        reports = mmjax.verify(mmjax.load("tiny.gin"), {"mine": plan})
        assert all(report.ok for report in reports)

    After two seconds it shows its progress on standard error.

    Args:
        config: The run: its model, data, seed, parts that train, optimizer, and transport of hops. A model in
            bfloat16 or with FP8 operands is compared in float32 too, and has two reports for each plan.
        plans: Plans by name; by default layouts of every kind that these devices and this model allow.
        steps: Number of steps to compare; between them, training on one device moves the parameters.

    Raises:
        PlanError: A plan cannot hold the model or the batch.
    """
    model, data, dataset = config.model, config.data, config.dataset("train")
    rows = GlobalRows.from_data(model, data)
    layouts, _ = layouts_to_verify(plans or {}, model, rows, with_defaults=plans is None)
    reports: list[LayoutReport] = []
    with display_call(jax.process_index() == 0) as display:
        display.show(VERIFYING, 0, len(layouts))
        for report in verify_run(model, data, dataset, layouts, config.engine_settings, steps):
            reports.append(report)
            display.show(VERIFYING, len(reports), len(layouts))
    return reports
