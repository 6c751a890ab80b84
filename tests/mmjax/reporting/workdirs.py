"""Workdirs as runs leave them, written by what runs write them with."""

import json
import pathlib

from PIL import Image

from mmjax.training.metrics.writers import open_metrics_writer
from sharding.plans.plan import Plan
from tests.unit_plans import module_unit

PLAN = Plan(
    (
        module_unit("vision", (0, 1), layers=(2,), dp=2),
        module_unit("backbone", (2, 3, 4, 5), layers=(2, 1), tp=2),
    ),
    microbatches=2,
)
VERSIONS = {"python": "3.12.1", "jax": "0.12.0"}


def scalars(step: int) -> dict[str, float]:
    """The metrics of a step."""
    return {
        "loss/backbone": 4.0 / step,
        "loss/generator": 1.0 / step,
        "learning_rate": step * 1e-4,
        "gradient_norm": 8.0 / step,
        "tokens_per_second": 1000.0 + step,
        "padding/backbone": 0.125,
        "tokens/backbone/real": 3828.0,
        "seconds/wall": 0.5,
        "seconds/dispatch": 0.25,
        "mine/score": step / 2,
    }


def write_start(workdir: pathlib.Path, step: int, time: str = "2026-11-20T10:00:00+00:00", processes: int = 1) -> None:
    """A line of `starts.jsonl`."""
    line = {"time": time, "step": step, "steps": 60, "processes": processes, "remark": "", "devices": "8 x cpu"}
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / "starts.jsonl").open("a") as lines:
        lines.write(json.dumps(line | {"versions": VERSIONS}) + "\n")


def write_steps(workdir: pathlib.Path, steps: range, resumed_step: int = 0) -> None:
    """Metrics of some steps, by a run that resumes after a step; with an accuracy at its last."""
    writer = open_metrics_writer(workdir, resumed_step)
    for step in steps:
        writer.write(step, scalars(step))
    writer.write(steps[-1], {"accuracy": 0.75})
    writer.close()
    PLAN.save(workdir / "plan.json")


def write_samples(workdir: pathlib.Path, step: int, answer: str) -> None:
    """The answers and images of an evaluation."""
    folder = workdir / "samples"
    folder.mkdir(exist_ok=True)
    for name in ("input_0_0.png", "target_0.png", f"step_{step:06d}_0.png"):
        Image.new("RGB", (4, 4), (step % 256, 0, 0)).save(folder / name)
    lines = [
        {"kind": "answer", "prompt": "what is <it>?", "images": ["input_0_0.png"], "expected": "a circle"},
        {"kind": "image", "prompt": "a red circle", "images": [], "expected": "target_0.png"},
    ]
    lines[0] |= {"answer": answer, "ended": True}
    lines[1] |= {"image": f"step_{step:06d}_0.png"}
    (folder / f"step_{step:06d}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_summary(workdir: pathlib.Path, steps: int, stopped_by: str = "") -> None:
    """The summary of a run that ended."""
    data = {"samples": {"vqa": 957, "text": 43}}
    summary = {"steps": steps, "stopped_by": stopped_by, "wall_seconds": 30.5, "data": data, "devices": "8 x cpu"}
    (workdir / "summary.json").write_text(json.dumps(summary))


def finished_run(workdir: pathlib.Path) -> pathlib.Path:
    """A run that was killed after step 8, resumed twice, and finished at step 12."""
    write_start(workdir, 0)
    write_steps(workdir, range(1, 9))
    write_samples(workdir, 8, "nothing")
    write_start(workdir, 6)
    write_steps(workdir, range(7, 11), resumed_step=6)
    write_start(workdir, 10)
    write_steps(workdir, range(11, 13), resumed_step=10)
    write_samples(workdir, 12, "a circle")
    (workdir / "unreadable.jsonl").write_text('{"source": "vqa", "key": "image <3>", "reason": "cut off"}\n')
    for step in (6, 12):
        (workdir / "checkpoints" / str(step)).mkdir(parents=True)
        (workdir / "checkpoints" / str(step) / "data").write_bytes(b"x" * 1000 * step)
    write_summary(workdir, 12)
    return workdir
