"""`python -m mmjax.verify`: compares losses and gradients of every layout with those of plain jax on one device.

Exits with code 1 if a layout exceeds a tolerance.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import flags

from mmjax import cli

if TYPE_CHECKING:
    import pathlib

    from mmjax.training.config import TrainConfig
    from mmjax.training.verification.comparison import LayoutReport
    from mmjax.training.verification.layouts import NamedLayout
    from sharding.plans.plan import Plan
    from sharding.specs.modules import ModuleGraph

_PLANS = flags.DEFINE_multi_string(
    "plan", [], "Plan file to verify; repeatable. Default: the configuration's plan and layouts of every kind."
)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "Compute precision; of bfloat16, its own rounding is tolerated."
)
_SHRINK = flags.DEFINE_bool("shrink", False, "Shrink widths and depths; kinds of layers and stages stay.")
_STEPS = flags.DEFINE_integer("steps", 2, "Steps; between them, training on one device moves the parameters.", 1)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON document instead of a table.")


def main() -> int:
    """Returns 0 if all layouts agree with the reference, else 1."""
    cli.parse_gin("quickstart.gin")
    import jax

    from data.packing.pipeline import training_batches
    from mmjax.training.config import TrainConfig
    from mmjax.training.verification.comparison import verify_layouts
    from mmjax.training.verification.reference import run_reference
    from mmjax.training.verification.shrink import shrink_data, shrink_model, shrink_plan
    from sharding.plans.plan import Plan
    from sharding.specs.modules import module_graph

    config = cli.configured(TrainConfig)
    model, data = dataclasses.replace(config.model, dtype=_DTYPE.value), config.data
    dataset = config.dataset("train")
    plans = {name: Plan.load(path) for name, path in _plan_files(config).items()}
    if _SHRINK.value:
        large = module_graph(model)
        model = shrink_model(model, dataset.tokenizer.vocabulary_size, tuple(plans.values()))
        plans = {name: shrink_plan(plan, large, module_graph(model)) for name, plan in plans.items()}
        data = shrink_data(data, model)
    layouts = _layouts(plans, module_graph(model), data.rows, jax.device_count(), config.transport)
    batches = training_batches(data, model, dataset)
    try:
        with jax.default_matmul_precision("highest"):
            reference = run_reference(model, data, batches, _STEPS.value, config.seed)
            return _print_reports(verify_layouts(model, layouts, reference, config.seed))
    finally:
        batches.close()


def _plan_files(config: "TrainConfig") -> "dict[str, str | pathlib.Path]":
    """The plan files to verify, by name."""
    from mmjax.training.config import find_plan_file

    if _PLANS.value:
        return {path: path for path in _PLANS.value}
    return {config.plan: find_plan_file(config.plan)} if config.plan else {}


def _layouts(
    plans: "dict[str, Plan]", graph: "ModuleGraph", rows: int, devices: int, transport: str
) -> "list[NamedLayout]":
    """The layouts of the plans and, unless `--plan` is given, the default layouts; prints those that are impossible."""
    from mmjax.training.verification.layouts import NamedLayout, default_layouts
    from sharding.plans.plan import check_plan
    from sharding.plans.unit_plan import PlanError

    layouts, refused = ([], {}) if _PLANS.value else default_layouts(graph, rows, devices)
    for name, plan in plans.items():
        try:
            check_plan(plan, graph, rows, devices)
            layouts.append(NamedLayout(name, plan, transport))
        except PlanError as error:
            if _PLANS.value:
                raise PlanError(f"{name}: {error}") from error
            refused[name] = str(error)
    for kind, reason in refused.items():
        print(f"left out: {kind}: {reason}", file=sys.stderr)
    return layouts


def _print_reports(reports: "Iterator[LayoutReport]") -> int:
    """Prints the reports as they come; returns the exit code."""
    from mmjax.training.verification.comparison import print_verification

    finished = list(reports) if _JSON.value else print_verification(reports)
    ok = all(report.ok for report in finished)
    if _JSON.value:
        print(json.dumps({"ok": ok, "layouts": [report.to_json() for report in finished]}))
    return 0 if ok else 1
