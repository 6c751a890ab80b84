"""Comparison of layouts with the reference: by module, the errors of a layout's loss and gradients.

The parameters of a step are put on a layout's devices, the executor runs its whole schedule but the update, and losses
and gradients are compared on the host in float64.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from mmjax.training.verification.error_measures import gradient_errors, loss_errors
from mmjax.training.verification.layouts import NamedLayout
from mmjax.training.verification.reference import MATMUL_PRECISION, Reference, ReferenceStep, RoundingErrors
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.runtime.pipeline import TrainState
from sharding.trees import Tree

# Float32 sums in another order differ by a few 1e-7 of their terms. Of gradients that cancel (a key's bias changes no
# softmax) only that rounding remains, and it is measured against 1e-3 of the module's typical gradient.
GRADIENT_TOLERANCE = 2e-4
LOSS_TOLERANCE = 1e-5
# In addition, this many times the rounding error of one device is tolerated, because a layout rounds other intermediate
# results. In bfloat16 the errors of some of hundreds of parameters are 1.8 times the largest error of the reference; a
# wrong gradient exceeds it about 20-fold.
ROUNDING_FACTOR = 3.0


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
        config: The model, in the precision whose rounding errors the reference has measured.
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
            engine = Engine(config, layout.plan, reference.steps[0].batch.arrays, own_settings)
            modules = compare_with_reference(engine, reference)
        yield LayoutReport(layout.name, modules)


def compare_with_reference(engine: Engine, reference: Reference) -> dict[str, ModuleReport]:
    """By module, the worst differences of all steps of a reference."""
    worst: dict[str, ModuleReport] = {}
    for number, step in enumerate(reference.steps):
        losses, gradients = losses_and_gradients(engine, step, number)
        for name, report in compare_step(step, reference.rounding, losses, gradients).items():
            worst[name] = worst[name].worse(report) if name in worst else report
    return worst


def losses_and_gradients(engine: Engine, step: ReferenceStep, number: int) -> tuple[dict[str, float], Tree]:
    """An engine's losses by name and gradients `{module: {piece: {layer: ...}}}` for a step of the reference."""
    parameters = trees_by_stage(step.parameters, engine.stage_layouts)
    shardings = {stage_id: engine.stages[stage_id].master_weights.shardings for stage_id in parameters}
    masters = jax.tree.map(lambda leaf, sharding: place_host_array(np.asarray(leaf), sharding), parameters, shardings)
    state = TrainState(masters, {}, engine.executor.global_reduction.initial_flag())
    gradients, summary = engine.executor.gradients(state, engine.place_batch(step.batch.arrays, number))
    return engine.losses_by_name(summary), trees_by_module(gradients)


def compare_step(
    step: ReferenceStep, rounding: RoundingErrors, losses: Mapping[str, float], gradients: Tree
) -> dict[str, ModuleReport]:
    """By module, the differences between a layout's losses and gradients and those of a reference step."""
    loss_differences: dict[str, list[Difference]] = {}
    for name, error in loss_errors(losses, step.losses).items():
        module, _, of_layers = name.partition("/")
        tolerance = LOSS_TOLERANCE + ROUNDING_FACTOR * rounding.losses[name]
        loss_differences.setdefault(module, []).append(Difference(error, tolerance, of_layers))
    reports = {}
    for module, errors in gradient_errors(gradients, step.gradients).items():
        module_rounding = rounding.gradients[module]
        typical = float(np.median(list(module_rounding.values()))) if module_rounding else 0.0
        differences = [
            Difference(error, GRADIENT_TOLERANCE + ROUNDING_FACTOR * max(module_rounding.get(path, 0.0), typical), path)
            for path, error in errors.items()
        ]
        reports[module] = ModuleReport(_worst(loss_differences.get(module, [])), _worst(differences))
    return reports


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
