"""The summary of a run at its end, and the lines about its starts, in its workdir.

`python -m mmjax.train` and `mmjax.Trainer` write it; the page of a run reads it.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import pathlib
import platform
from collections.abc import Sequence
from typing import Any

import jax

from configs.common.errors import UserError
from configs.common.strict_json import read_json_file
from configs.common.whole_files import append_whole
from mmjax.training.metrics.step_report import padding_fractions
from mmjax.training.train_loop import TrainResult
from sharding.plans.plan import Plan

PACKAGES = ("mmjax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
"""Packages whose versions a summary states."""

SUMMARY_FILE = "summary.json"
"""File of a workdir that describes how its newest run ended."""

STARTS_FILE = "starts.jsonl"
"""File of a workdir with a line for every start."""


def run_summary(result: TrainResult, plan: Plan, backbone: str, remark: str) -> dict[str, Any]:
    """Makes the contents of `summary.json`.

    Args:
        result: Result of the run.
        plan: The plan it ran on.
        backbone: Name of the module whose real tokens give the throughput.
        remark: Why the plan is not the configured one, or what else it was made for; may be empty.
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
        "counted": None if score is None else score.counted(),
        "stopped_by": result.stopped_by,
        "order_swaps": [dataclasses.asdict(swap) for swap in result.order_swaps],
        "data": result.data_counters,
        "plan": json.loads(plan.to_json()),
        "remark": remark,
        **environment(),
    }


def environment() -> dict[str, Any]:
    """The devices of this run in words, and the versions of Python and of packages."""
    return {
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def record_start(workdir: pathlib.Path, step: int, steps: int, remark: str, passed_over: Sequence[str] = ()) -> None:
    """Appends a line to `starts.jsonl` of a workdir: when, where and at which step a process starts or resumes its run.

    Args:
        workdir: Folder of the run.
        step: Steps done.
        steps: Steps of the whole run.
        remark: Why the plan is not the configured one, or what else it was made for; may be empty.
        passed_over: Why a resumed run does not continue another checkpoint, a line each.
    """
    time = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    line = {"time": time, "step": step, "steps": steps, "processes": jax.process_count(), "remark": remark}
    line["passed_over"] = list(passed_over)
    append_whole(workdir / STARTS_FILE, json.dumps(line | environment()) + "\n")


def finished_steps(workdir: pathlib.Path) -> int | None:
    """Returns the steps of the run in a workdir that trained to its end and was evaluated; None if there is none."""
    try:
        summary = read_json_file(workdir / SUMMARY_FILE)
        return None if summary["stopped_by"] else int(summary["steps"])
    except (UserError, ValueError, TypeError, KeyError):
        return None
