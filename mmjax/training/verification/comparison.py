"""Comparison of layouts with the reference: by module, the errors of a layout's loss and gradients.

The parameters of a step are put on a layout's devices, the executor runs its whole schedule but the update, and losses
and gradients are compared on the host in float64.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from configs.architectures import ModelConfig
from mmjax.models.structure.parameters import place_host_array
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.engine.stage_layouts import trees_by_module, trees_by_stage
from mmjax.training.verification.error_measures import (
    global_norm,
    gradient_errors,
    loss_errors,
    scale_errors,
    zero_gradients,
)
from mmjax.training.verification.layouts import NamedLayout
from mmjax.training.verification.reference import MATMUL_PRECISION, Reference, ReferenceStep, RoundingErrors
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.runtime.pipeline import TrainState
from sharding.trees import Tree

# Float32 sums in another order differ by a few 1e-7 of their terms. Of gradients that cancel (a key's bias changes no
# softmax) only that rounding remains, and it is measured against 1e-3 of the module's typical gradient.
GRADIENT_TOLERANCE = 2e-4
LOSS_TOLERANCE = 1e-5
NORM_TOLERANCE = 1e-4
# In addition, this many times the rounding error of one device is tolerated, because a layout rounds other intermediate
# results. In bfloat16 the errors of some of hundreds of parameters are 2.2 times the largest error of the reference.
ROUNDING_FACTOR = 3.0


@dataclasses.dataclass(frozen=True)
class Limits:
    """The largest errors that are accepted in a precision, however large its rounding errors are.

    In bfloat16 a parameter's gradient has passed some hundred roundings of up to 2^-9 each, so that a right one can
    differ by several percent, and no limit can reveal a factor of 1.02 in a single parameter. That is revealed in
    float32, in which every layout is compared too. In bfloat16 the gradient of a whole module is compared as well, in
    which errors average out.

    Attributes:
        loss: Of a loss.
        parameter: Of the gradient of a parameter; a gradient that is zero is limited by rounding errors alone.
        least_scale, scale: Of all gradients of a module in the direction of the reference (`scale_errors`): what is
            accepted even if rounding errors are smaller, and the limit.
    """

    loss: float
    parameter: float
    least_scale: float
    scale: float


LIMITS = {
    "float32": Limits(loss=1e-4, parameter=1e-2, least_scale=GRADIENT_TOLERANCE, scale=1e-3),
    "bfloat16": Limits(loss=1e-2, parameter=0.2, least_scale=1e-2, scale=4e-2),
}

ALL_MODULES = "all modules"
"""The report of what is computed of all modules together: the global norm of their gradients, which are clipped by it.

A layout's norm is compared with that of its own gradients, so that it is wrong only if the sum of all stages is."""

SCALE = "(scale of all parameters)"
"""Stands for a parameter in the difference of `scale_errors`."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The error of a loss or gradient relative to the reference, and its tolerance.

    Attributes:
        error: The relative error.
        tolerance: The largest error that is accepted.
        what: The parameter; or, of losses, the part of the loss name after the module's.
    """

    error: float
    tolerance: float
    what: str = ""

    @property
    def excess(self) -> float:
        """Error over tolerance; above 1 it is too large."""
        return self.error / self.tolerance


@dataclasses.dataclass(frozen=True)
class ModuleReport:
    """The differences of one module of a layout, the worst of all steps.

    Attributes:
        loss: Of its loss, or of the loss of its layers if that is worse; None if it has neither.
        gradient: Of the parameter whose error is the largest relative to its tolerance; None if the module is frozen.
    """

    loss: Difference | None
    gradient: Difference | None

    @property
    def ok(self) -> bool:
        """Whether all differences are within their tolerances."""
        return all(difference.excess <= 1 for difference in (self.loss, self.gradient) if difference)

    def worse(self, other: "ModuleReport") -> "ModuleReport":
        """The worse loss and the worse gradient of two steps."""
        return ModuleReport(_worst((self.loss, other.loss)), _worst((self.gradient, other.gradient)))


def _worst(differences: Iterable[Difference | None]) -> Difference | None:
    return max(filter(None, differences), key=lambda difference: difference.excess, default=None)


@dataclasses.dataclass(frozen=True)
class LayoutReport:
    """The differences of all modules of a layout.

    Attributes:
        layout: Name of the layout.
        modules: By module name.
    """

    layout: str
    modules: dict[str, ModuleReport]

    @property
    def ok(self) -> bool:
        """Whether all modules are within their tolerances."""
        return all(module.ok for module in self.modules.values())

    def to_json(self) -> dict[str, Any]:
        """What `python -m mmjax.verify --json` prints of the layout."""
        modules = {
            name: {
                "loss": report.loss.error if report.loss else None,
                "gradient": report.gradient.error if report.gradient else None,
                "parameter": report.gradient.what if report.gradient else None,
                "tolerance": report.gradient.tolerance if report.gradient else None,
                "loss_tolerance": report.loss.tolerance if report.loss else None,
                "ok": report.ok,
            }
            for name, report in self.modules.items()
        }
        return {"layout": self.layout, "ok": self.ok, "modules": modules}


def verify_layouts(
    config: ModelConfig, layouts: Sequence[NamedLayout], reference: Reference, settings: EngineSettings
) -> Iterator[LayoutReport]:
    """Compares layouts with a reference, one after another.

    Args:
        config: The model.
        layouts: The layouts to compare.
        reference: From `run_reference`.
        settings: The settings that the reference was run with; a layout can have a transport of its own.

    Raises:
        PlanError: A plan cannot hold this model or batch.
    """
    for layout in layouts:
        implementation = (
            use_attention_implementation(layout.attention) if layout.attention else contextlib.nullcontext()
        )
        with jax.default_matmul_precision(MATMUL_PRECISION), implementation:
            own_settings = dataclasses.replace(settings, transport=layout.transport or settings.transport)
            model = dataclasses.replace(config, dtype=layout.dtype)
            engine = Engine(model, layout.plan, reference.steps[0].batch.arrays, own_settings)
            modules = compare_with_reference(engine, reference)
        yield LayoutReport(layout.name, modules)


def compare_with_reference(engine: Engine, reference: Reference) -> dict[str, ModuleReport]:
    """By module, the worst differences of all steps of a reference."""
    worst: dict[str, ModuleReport] = {}
    for number, step in enumerate(reference.steps):
        results = step_results(engine, step, number)
        for name, report in compare_step(step, reference.rounding[engine.config.dtype], results).items():
            worst[name] = worst[name].worse(report) if name in worst else report
    return worst


@dataclasses.dataclass(frozen=True)
class StepResults:
    """What a layout computes for a step of the reference.

    Attributes:
        losses: By name.
        gradients: `{module: {piece: {layer: ...}}}`.
        gradient_norm: The global norm, of which the factor that clips gradients is made.
    """

    losses: dict[str, float]
    gradients: Tree
    gradient_norm: float


def step_results(engine: Engine, step: ReferenceStep, number: int) -> StepResults:
    """The results of an engine for a step of the reference."""
    parameters = trees_by_stage(step.parameters, engine.stage_layouts)
    shardings = {stage_id: engine.stages[stage_id].master_weights.shardings for stage_id in parameters}
    masters = jax.tree.map(lambda leaf, sharding: place_host_array(np.asarray(leaf), sharding), parameters, shardings)
    state = TrainState(masters, {}, engine.executor.global_reduction.initial_flag())
    gradients, summary = engine.executor.gradients(state, engine.place_batch(step.batch.arrays, number))
    return StepResults(engine.losses_by_name(summary), trees_by_module(gradients), float(summary.gradient_norm))


def compare_step(step: ReferenceStep, rounding: RoundingErrors, results: StepResults) -> dict[str, ModuleReport]:
    """By module, the differences between a layout's losses and gradients and those of a reference step."""
    limits, gradients = LIMITS[rounding.dtype], results.gradients
    loss_differences: dict[str, list[Difference]] = {}
    for name, error in loss_errors(results.losses, step.losses).items():
        module, _, of_layers = name.partition("/")
        tolerance = min(limits.loss, LOSS_TOLERANCE + ROUNDING_FACTOR * rounding.losses[name])
        loss_differences.setdefault(module, []).append(Difference(error, tolerance, of_layers))
    reports, zero, scales = {}, zero_gradients(step.gradients), scale_errors(gradients, step.gradients)
    for module, errors in gradient_errors(gradients, step.gradients).items():
        module_rounding = rounding.gradients[module]
        typical = float(np.median(list(module_rounding.values()))) if module_rounding else 0.0
        differences = []
        for path, error in errors.items():
            tolerance = GRADIENT_TOLERANCE + ROUNDING_FACTOR * max(module_rounding.get(path, 0.0), typical)
            limit = math.inf if path in zero.get(module, ()) else limits.parameter
            differences.append(Difference(error, min(tolerance, limit), path))
        worst = _worst(differences)
        if module in scales and worst and worst.excess <= 1:  # otherwise the parameter says more
            tolerance = min(limits.scale, max(limits.least_scale, ROUNDING_FACTOR * rounding.scales[module]))
            worst = _worst((worst, Difference(scales[module], tolerance, SCALE)))
        reports[module] = ModuleReport(_worst(loss_differences.get(module, [])), worst)
    norm = global_norm(gradients)
    norm_error = loss_errors({"norm": results.gradient_norm}, {"norm": norm})["norm"]
    norm_difference = Difference(norm_error, NORM_TOLERANCE, "(global norm of the gradients)")
    return {**reports, ALL_MODULES: ModuleReport(None, norm_difference)}


# ---------------------------------------------------------------------- the tables


def print_report(report: LayoutReport, console: Console) -> None:
    """Prints the table of a layout: the worst differences of each module, and their tolerances."""
    console.print(_table(report))


def print_verdict(reports: Sequence[LayoutReport], console: Console) -> None:
    """Prints whether all layouts agree, or which do not."""
    wrong = [report.layout for report in reports if not report.ok]
    if wrong:
        console.print(f"{len(wrong)} of {len(reports)} layouts are wrong: {'; '.join(wrong)}", highlight=False)
    else:
        console.print(f"all {len(reports)} layouts agree with the single-device reference", highlight=False)


def _table(report: LayoutReport) -> Table:
    table = Table(title=report.layout, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("module", "loss", "gradient", "at most", ""):
        table.add_column(name, no_wrap=True)
    table.add_column("worst parameter", overflow="fold")
    for name, module in report.modules.items():
        loss = "-" if module.loss is None else f"{module.loss.error:.1e}"
        verdict = "ok" if module.ok else "WRONG"
        gradient = (
            ("-", "-")
            if module.gradient is None
            else (f"{module.gradient.error:.1e}", f"{module.gradient.tolerance:.1e}")
        )
        table.add_row(name, loss, *gradient, verdict, module.gradient.what if module.gradient else "frozen")
    return table
