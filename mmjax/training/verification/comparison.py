"""Layouts against the reference: per layout and module, how far loss and gradients are from one plain device.

A step's parameters are put on a layout's devices, the executor runs its whole schedule but the update, and what it
finds is compared on the host in float64.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from configs.architectures import ModelConfig
from mmjax.models.structure.parameters import place_host_array
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.engine.stage_layouts import trees_by_module, trees_by_stage
from mmjax.training.verification.error_measures import gradient_errors, loss_errors
from mmjax.training.verification.layouts import NamedLayout
from mmjax.training.verification.reference import Reference, ReferenceStep, RoundingErrors
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.runtime.executor import TrainState
from sharding.trees import Tree

# Float32 sums in another order differ by a few 1e-7 of their terms. Of gradients that cancel (a key's bias moves no
# softmax) only that rounding remains, and it is measured against 1e-3 of the module's typical gradient.
GRADIENT_TOLERANCE = 2e-4
LOSS_TOLERANCE = 1e-5
# Above that, one device's own error counts: a layout rounds in other places, which is another draw of the same error.
# In bfloat16, of hundreds of parameters some draw 1.8 times the reference's largest; a fault is some 20 times it.
ROUNDING_FACTOR = 3.0


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far something is from the reference, and how far it may be."""

    error: float
    tolerance: float
    what: str = ""

    @property
    def excess(self) -> float:
        """Above 1 is too much."""
        return self.error / self.tolerance


@dataclasses.dataclass(frozen=True)
class ModuleReport:
    """One module of a layout, the worst of all steps.

    Attributes:
        loss: Relative difference of its loss, or of its layers' if that is worse; None if it has neither.
        gradient: The parameter whose difference is most beyond its tolerance, or nearest to it.
    """

    loss: Difference | None
    gradient: Difference

    @property
    def ok(self) -> bool:
        """Whether all differences are within their tolerances."""
        return all(each.excess <= 1 for each in (self.loss, self.gradient) if each)

    def worse(self, other: "ModuleReport") -> "ModuleReport":
        """The worse of two steps, loss and gradient each for itself."""
        losses = [each for each in (self.loss, other.loss) if each]
        return ModuleReport(
            max(losses, key=lambda each: each.excess) if losses else None,
            max(self.gradient, other.gradient, key=lambda each: each.excess),
        )


@dataclasses.dataclass(frozen=True)
class LayoutReport:
    """All modules of a layout."""

    plan: str
    modules: dict[str, ModuleReport]

    @property
    def ok(self) -> bool:
        """Whether every module is."""
        return all(module.ok for module in self.modules.values())

    def to_json(self) -> dict:
        """What `--json` prints of it."""
        modules = {
            name: {
                "loss": report.loss.error if report.loss else None,
                "gradient": report.gradient.error,
                "parameter": report.gradient.what,
                "tolerance": report.gradient.tolerance,
                "loss_tolerance": report.loss.tolerance if report.loss else None,
                "ok": report.ok,
            }
            for name, report in self.modules.items()
        }
        return {"plan": self.plan, "ok": self.ok, "modules": modules}


def verify_layouts(
    config: ModelConfig, layouts: Sequence[NamedLayout], reference: Reference, seed: int
) -> Iterator[LayoutReport]:
    """Judges layouts one after another.

    Args:
        config: The model, in the precision that the reference measured its own error for.
        layouts: What to judge.
        reference: From `reference.run_reference`.
        seed: The one that it was run with.

    Raises:
        PlanError: A plan that cannot hold this model or batch.
    """
    example = reference.steps[0].batch.arrays
    for layout in layouts:
        with use_attention_implementation(layout.attention) if layout.attention else contextlib.nullcontext():
            engine = Engine(config, layout.plan, example, EngineSettings(seed=seed, transport=layout.transport))
            modules = compare_with_reference(engine, reference)
        yield LayoutReport(layout.name, modules)


def compare_with_reference(engine: Engine, reference: Reference) -> dict[str, ModuleReport]:
    """By module, the worst of what an engine finds in all steps."""
    worst: dict[str, ModuleReport] = {}
    for number, step in enumerate(reference.steps):
        losses, gradients = losses_and_gradients(engine, step, number)
        for name, report in compare_step(step, reference.rounding, losses, gradients).items():
            worst[name] = worst[name].worse(report) if name in worst else report
    return worst


def losses_and_gradients(engine: Engine, step: ReferenceStep, number: int) -> tuple[dict[str, float], Tree]:
    """Losses by name, and gradients as the reference has them."""
    parameters = trees_by_stage(step.parameters, engine.stage_layouts)
    shardings = {node: engine.stages[node].master_weights.shardings for node in parameters}
    masters = jax.tree.map(lambda leaf, sharding: place_host_array(np.asarray(leaf), sharding), parameters, shardings)
    state = TrainState(masters, {}, engine.executor.global_reduction.initial_flag())
    gradients, decision = engine.executor.gradients(state, engine.place_batch(step.batch.arrays, number))
    return engine.losses_by_name(decision), trees_by_module(gradients)


def compare_step(
    step: ReferenceStep, own: RoundingErrors, losses: Mapping[str, float], gradients: Tree
) -> dict[str, ModuleReport]:
    """By module, what a layout found in a step beside what it should have found."""
    of_losses: dict[str, list[Difference]] = {}
    for name, error in loss_errors(losses, step.losses).items():
        module, _, layers = name.partition("/")
        of_losses.setdefault(module, []).append(
            Difference(error, LOSS_TOLERANCE + ROUNDING_FACTOR * own.losses[name], layers)
        )
    reports = {}
    for module, errors in gradient_errors(gradients, step.gradients).items():
        typical = float(np.median(list(own.gradients[module].values())))
        differences = [
            Difference(
                error, GRADIENT_TOLERANCE + ROUNDING_FACTOR * max(own.gradients[module].get(path, 0.0), typical), path
            )
            for path, error in errors.items()
        ]
        loss = max(of_losses.get(module, ()), key=lambda each: each.excess, default=None)
        reports[module] = ModuleReport(loss, max(differences, key=lambda each: each.excess))
    return reports
