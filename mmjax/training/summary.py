"""The summary that a run leaves in its workdir."""

import importlib.metadata
import json
import pathlib
import platform
from typing import Any

import jax

from mmjax.training.fitting import TrainResult
from mmjax.training.metrics.step_report import padding_fractions
from sharding.plans.plan import Plan

PACKAGES = ("mmjax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
"""Packages whose versions a summary states."""

SUMMARY_FILE = "summary.json"
"""File of a workdir with how its newest run ended."""


def run_summary(result: TrainResult, plan: Plan, backbone: str, remark: str) -> dict[str, Any]:
    """What `summary.json` holds of a run.

    Args:
        result: How the run ended.
        plan: The plan it ran on.
        backbone: Name of the module whose real tokens give the throughput.
        remark: Why the plan is not the configured one; empty if it is.
    """
    score = result.score
    real_tokens, _ = result.counts.get(backbone, (0, 0))
    return {
        "steps": result.step,
        "wall_seconds": round(result.seconds, 1),
        "compile_seconds": round(result.compile_seconds, 1),
        "tokens_per_second": round(real_tokens / result.step_seconds, 1) if result.step_seconds else None,
        "padding": {module: round(fraction, 4) for module, fraction in padding_fractions(result.counts).items()},
        "losses": result.losses,
        "accuracy": None if score is None else round(score.accuracy, 4),
        "questions": None if score is None else score.questions,
        "stopped_by": result.stopped_by,
        "data": result.data_counters,
        "plan": json.loads(plan.to_json()),
        "remark": remark,
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def finished_steps(workdir: pathlib.Path) -> int | None:
    """Steps of the run in a workdir that trained to its end and was evaluated; None if there is none."""
    try:
        summary = json.loads((workdir / SUMMARY_FILE).read_text(encoding="utf-8"))
        return None if summary["stopped_by"] else int(summary["steps"])
    except (OSError, ValueError, KeyError):
        return None
