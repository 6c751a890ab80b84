"""The same training step in PyTorch for `benchmarks.gpu`: padded as people run it, and packed in every way there is.

Weights and AdamW's moments are bfloat16 throughout, which is the cheapest way there is; mmjax keeps both in float32.
The forms differ in rows and attention alone: one model takes them in turns, step by step.
"""

import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu import batches as gpu_batches
from benchmarks.gpu.parts import BATCHES, TRAINED, WEIGHTS, PartRun, short_reason
from benchmarks.gpu.pytorch_batches import microbatches
from benchmarks.gpu.pytorch_model import (
    PYTORCH_CPU_VARIANTS,
    PYTORCH_VARIANTS,
    VARLEN,
    PyTorchLlava,
    PyTorchVariant,
    register_varlen,
)
from mmjax.training.metrics.flops import peak_flops

LEARNING_RATE, BETAS, DECAY, MAX_NORM = 1e-5, (0.9, 0.98), 0.01, 1.0
DIFFERENCE = {"float32": 1e-4, "bfloat16": 1e-2}
"""Relative, between the losses of the first step."""
GOALS = {"packed": 1.15, "padded": 1.5}


def rows(task: PartRun) -> Iterator[dict[str, Any]]:
    """Tokens a second and MFU of every form, and how mmjax compares."""
    if not (task.folder / TRAINED).exists():
        yield task.row("pytorch", None, note="not run: it starts from the weights that the part mmjax writes")
        return
    ours = json.loads((task.folder / TRAINED).read_text())
    gpu = torch.cuda.is_available()
    if task.check_speed and not gpu:
        yield task.row("pytorch", None, note="not run: this PyTorch has no CUDA")
        return
    sizes, device = task.sizes, "cuda" if gpu else "cpu"
    model = PyTorchLlava(task.folder / WEIGHTS, getattr(torch, sizes.model.dtype), device).train()
    if gpu:
        model.compile_blocks()
    trainer = PyTorchTrainer(model, gpu)
    steps = gpu_batches.load_steps(task.folder / BATCHES)
    ready: dict[PyTorchVariant, list] = {}
    for form in PYTORCH_VARIANTS if gpu else [each for each in PYTORCH_VARIANTS if each.name in PYTORCH_CPU_VARIANTS]:
        if task.seconds_left < 10:
            yield task.row(f"PyTorch {form.name}", None, note="cut for time")
            continue
        try:
            if form.attention == VARLEN:
                register_varlen()
            placed = [microbatches(step, sizes, ours["microbatches"], form, device) for step in steps]
            losses = [trainer.loss(form, each) for each in placed]  # compiles, for the shapes of every batch
        except Exception as error:  # a form that this PyTorch has not, or that does not fit; the others go on
            trainer.forget()
            yield task.row(f"PyTorch {form.name}", None, note=f"not run: {short_reason(error)}")
            continue
        ready[form] = placed
        if "loss" in ours:
            name = f"loss of the first step, PyTorch {form.name} over mmjax, less 1"
            difference = abs(losses[0] / ours["loss"] - 1)
            yield task.row(name, difference, DIFFERENCE[sizes.model.dtype], at_most=True, always=True)
    yield from _timed(task, trainer, ready, steps, ours)


def _timed(
    task: PartRun, trainer: "PyTorchTrainer", ready: dict[PyTorchVariant, list], steps: list, ours: dict
) -> Iterator[dict]:
    rates: dict[PyTorchVariant, list[float]] = {form: [] for form in ready}
    useful = [gpu_batches.useful_tokens(step, task.sizes) for step in steps]
    for number in range(-1, task.sizes.steps):
        if number > 0 and task.seconds_left < 3:
            break
        at = number % len(steps)
        for form in list(ready):
            try:
                seconds = trainer.step(form, ready[form][at])
            except torch.OutOfMemoryError as error:
                trainer.forget()
                del ready[form]
                yield task.row(f"PyTorch {form.name}", None, note=f"not timed: {short_reason(error)}")
                continue
            if number >= 0:  # the one before makes the optimizer's state
                rates[form].append(useful[at] / seconds)
    found = {form: statistics.median(rates[form]) for form in ready if rates[form]}
    flops = sum(sum(gpu_batches.step_flops(step, task.sizes).values()) for step in steps) / sum(useful)
    kind = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    peak = peak_flops(kind)
    for form, rate in found.items():
        waste = 1 - useful[0] / sum(each["tokens"].numel() for each in ready[form][0])
        note = f"rows {waste:.1%} padding; {'regional torch.compile' if peak else 'eager'}, {task.sizes.model.dtype}"
        yield task.row(f"PyTorch {form.name}: step, tokens/s", rate, note=note)
        unknown = f"the peak of {kind} is not known (configs/clusters.py)"
        share = None if peak is None else rate * flops / peak
        yield task.row(f"PyTorch {form.name}: MFU of the step", share, note="" if peak else unknown)
    yield from _compared(task, found, ours)


def _compared(task: PartRun, found: dict[PyTorchVariant, float], ours: dict) -> Iterator[dict]:
    """Mmjax's tokens a second over PyTorch's best of a kind."""
    for kind, goal in GOALS.items():
        of_kind = {form: rate for form, rate in found.items() if form.packed == (kind == "packed")}
        best = max(of_kind, key=of_kind.__getitem__, default=None)
        if best is None or "tokens_per_second" not in ours:
            yield task.row(f"mmjax over PyTorch {kind}", None, goal, "one of them was not timed")
        else:
            rate = ours["tokens_per_second"] / of_kind[best]
            yield task.row(f"mmjax over PyTorch {kind}", rate, goal, f"over its best: {best.name}")


class PyTorchTrainer:
    """The optimizer step around the model."""

    def __init__(self, model: PyTorchLlava, fused: bool) -> None:
        self._model = model
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        decayed = [each for each in self._parameters if each.ndim >= 2]
        groups = [
            {"params": decayed, "weight_decay": DECAY},
            {"params": [each for each in self._parameters if each.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, fused=fused)

    def loss(self, form: PyTorchVariant, placed: list) -> float:
        """The loss of a step, forward and backward, without changing anything."""
        loss = self._gradients(form, placed).item()
        self.forget()
        return loss

    def step(self, form: PyTorchVariant, placed: list) -> float:
        """Seconds of a step."""
        self._wait()
        begin = time.perf_counter()
        self._gradients(form, placed)
        torch.nn.utils.clip_grad_norm_(self._parameters, MAX_NORM)
        self._optimizer.step()
        self.forget()
        self._wait()
        return time.perf_counter() - begin

    def forget(self) -> None:
        """Drops the gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def _gradients(self, form: PyTorchVariant, placed: list) -> torch.Tensor:
        self._model.attend(form.attention)
        total = torch.zeros((), device=self._model.device)
        for batch in placed:
            loss = self._model(batch) / batch["total"]
            loss.backward()
            total += loss.detach()
        return total

    def _wait(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
