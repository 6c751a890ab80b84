"""The same training step in PyTorch for `benchmarks.gpu`: padded, as is usual, and packed in several ways.

PyTorch keeps weights and AdamW's moments in bfloat16, which is cheapest. mmjax keeps both in float32. The variants
differ only in rows and attention, and one model runs them in turns, step by step.
"""

import json
import statistics
from collections.abc import Callable, Iterator
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
"""Largest relative difference between the losses of the first step, by precision."""
GOALS = {"packed": 1.15, "padded": 1.5}


def rows(task: PartRun) -> Iterator[dict[str, Any]]:
    """Tokens per second and MFU of every variant, and how mmjax compares."""
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
    trainer = PyTorchTrainer(model, gpu, task.clock)
    steps = gpu_batches.load_steps(task.folder / BATCHES)
    ready: dict[PyTorchVariant, list] = {}
    variants = [variant for variant in PYTORCH_VARIANTS if gpu or variant.name in PYTORCH_CPU_VARIANTS]
    for variant in variants:
        if task.seconds_left < 10:
            yield task.row(f"PyTorch {variant.name}", None, note="cut for time")
            continue
        try:
            if variant.attention == VARLEN:
                register_varlen()
            placed = [microbatches(step, sizes, ours["microbatches"], variant, device) for step in steps]
            losses = [trainer.loss(variant, batch) for batch in placed]  # compiles, for the shapes of every batch
        except Exception as error:  # this PyTorch lacks the variant, or it needs too much memory
            trainer.forget()
            yield task.row(f"PyTorch {variant.name}", None, note=f"not run: {short_reason(error)}")
            continue
        ready[variant] = placed
        if "loss" in ours:
            name = f"loss of the first step, PyTorch {variant.name} over mmjax, less 1"
            difference = abs(losses[0] / ours["loss"] - 1)
            yield task.row(name, difference, DIFFERENCE[sizes.model.dtype], at_most=True, always=True)
    yield from _timed(task, trainer, ready, steps, ours)


def _timed(
    task: PartRun, trainer: "PyTorchTrainer", ready: dict[PyTorchVariant, list], steps: list, ours: dict
) -> Iterator[dict]:
    rates: dict[PyTorchVariant, list[float]] = {variant: [] for variant in ready}
    useful = [gpu_batches.useful_tokens(step, task.sizes) for step in steps]
    for number in range(-1, task.sizes.steps):
        if number > 0 and task.seconds_left < 3:
            break
        at = number % len(steps)
        for variant in list(ready):
            try:
                seconds = trainer.step(variant, ready[variant][at])
            except torch.OutOfMemoryError as error:
                trainer.forget()
                del ready[variant]
                yield task.row(f"PyTorch {variant.name}", None, note=f"not timed: {short_reason(error)}")
                continue
            if number >= 0:  # the one before makes the optimizer's state
                rates[variant].append(useful[at] / seconds)
    median_rates = {variant: statistics.median(rates[variant]) for variant in ready if rates[variant]}
    flops = sum(sum(gpu_batches.step_flops(step, task.sizes).values()) for step in steps) / sum(useful)
    kind = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    peak = peak_flops(kind)
    for variant, rate in median_rates.items():
        waste = 1 - useful[0] / sum(microbatch["tokens"].numel() for microbatch in ready[variant][0])
        how = f"{'regional torch.compile' if peak else 'eager'}, {task.sizes.model.dtype}{task.clock_note}"
        note = f"rows {waste:.1%} padding; {how}"
        yield task.row(f"PyTorch {variant.name}: step, tokens/s", rate, note=note)
        unknown = f"the peak of {kind} is not known (configs/clusters.py)"
        share = None if peak is None else rate * flops / peak
        yield task.row(f"PyTorch {variant.name}: MFU of the step", share, note="" if peak else unknown)
    yield from _compared(task, median_rates, ours)


def _compared(task: PartRun, rates: dict[PyTorchVariant, float], ours: dict) -> Iterator[dict]:
    """Tokens per second of mmjax over the fastest PyTorch variant's, packed and padded."""
    for kind, goal in GOALS.items():
        comparable = {variant: rate for variant, rate in rates.items() if variant.packed == (kind == "packed")}
        best = max(comparable, key=comparable.__getitem__, default=None)
        if best is None or "tokens_per_second" not in ours:
            yield task.row(f"mmjax over PyTorch {kind}", None, goal, "one of them was not timed")
        else:
            rate = ours["tokens_per_second"] / comparable[best]
            yield task.row(f"mmjax over PyTorch {kind}", rate, goal, f"over its best: {best.name}")


class PyTorchTrainer:
    """Runs training steps of the model."""

    def __init__(self, model: PyTorchLlava, fused: bool, clock: Callable[[], float]) -> None:
        self._model, self._clock = model, clock
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        decayed = [parameter for parameter in self._parameters if parameter.ndim >= 2]
        groups = [
            {"params": decayed, "weight_decay": DECAY},
            {"params": [parameter for parameter in self._parameters if parameter.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, fused=fused)

    def loss(self, variant: PyTorchVariant, placed: list) -> float:
        """The loss of a step, run forward and backward without an update."""
        loss = self._gradients(variant, placed).item()
        self.forget()
        return loss

    def step(self, variant: PyTorchVariant, placed: list) -> float:
        """Runs a step and returns its seconds."""
        self._wait()
        begin = self._clock()
        self._gradients(variant, placed)
        torch.nn.utils.clip_grad_norm_(self._parameters, MAX_NORM)
        self._optimizer.step()
        self.forget()
        self._wait()
        return self._clock() - begin

    def forget(self) -> None:
        """Drops the gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def _gradients(self, variant: PyTorchVariant, placed: list) -> torch.Tensor:
        self._model.attend(variant.attention)
        total = torch.zeros((), device=self._model.device)
        for batch in placed:
            loss = self._model(batch) / batch["total"]
            loss.backward()
            total += loss.detach()
        return total

    def _wait(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
