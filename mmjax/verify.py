"""`python -m mmjax.verify`: every layout must find the losses and gradients that one plain device finds.

Exits with 1 if any layout exceeds its tolerance.
"""

import dataclasses
import json
import sys
from typing import Any

from absl import flags

from mmjax import cli

_PLANS = flags.DEFINE_multi_string(
    "plan", [], "Plan file to verify; repeatable. Default: the configuration's own plan and layouts of every kind."
)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "Compute precision; bfloat16 is judged against its own error."
)
_REDUCED = flags.DEFINE_bool("shrink", False, "Shrink widths and depths; kinds of layers and cuts stay.")
_STEPS = flags.DEFINE_integer("steps", 2, "Steps; plain training on one device moves the parameters between.", 1)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON document instead of a table.")


def main() -> int:
    """0 if all layouts agree with the reference, else 1."""
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
    model, data, source = dataclasses.replace(config.model, dtype=_DTYPE.value), config.data, config.source("train")
    plans = {name: Plan.load(path) for name, path in _plan_files(config).items()}
    if _REDUCED.value:
        large = module_graph(model)
        model = shrink_model(model, source.tokenizer.vocabulary_size, tuple(plans.values()))
        plans = {name: shrink_plan(plan, large, module_graph(model)) for name, plan in plans.items()}
        data = shrink_data(data, model)
    layouts = _layouts(plans, module_graph(model), data.rows, jax.device_count(), config.transport)
    batches = training_batches(data, model, source)
    try:
        with jax.default_matmul_precision("highest"):
            reference = run_reference(model, data, batches, _STEPS.value, config.seed)
            return _report(verify_layouts(model, layouts, reference, config.seed))
    finally:
        batches.close()


def _plan_files(config: Any) -> dict[str, Any]:
    """Paths of plan files by the names they go by."""
    from mmjax.training.config import find_plan_file

    if _PLANS.value:
        return {path: path for path in _PLANS.value}
    return {config.plan: find_plan_file(config.plan)} if config.plan else {}


def _layouts(plans: dict[str, Any], graph: Any, rows: int, devices: int, transport: str) -> list[Any]:
    """Of the plans; also of every kind if none were asked for, which leaves out and names what can't be here."""
    from mmjax.training.verification.layouts import NamedLayout, default_layouts
    from sharding.plans.plan import PlanError, check_plan

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


def _report(reports: Any) -> int:
    from mmjax.training.verification.table import print_verification

    done = list(reports) if _JSON.value else print_verification(reports)
    ok = all(report.ok for report in done)
    if _JSON.value:
        print(json.dumps({"ok": ok, "layouts": [report.to_json() for report in done]}))
    return 0 if ok else 1


if __name__ == "__main__":
    cli.run(main)
