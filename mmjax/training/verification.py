"""Layouts against the reference: per layout and module, how far loss and gradients are from one plain device.

A step's parameters are put on a layout's devices, the executor runs its whole schedule but the update, and what it
finds is compared on the host in float64.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from configs.architectures import ModelConfig
from mmjax.models.parameters import put
from mmjax.training.engine import Engine
from mmjax.training.layouts import Layout
from mmjax.training.reference import ReferenceStep
from mmjax.training.settings import Settings
from mmjax.training.stages import by_module, by_stage
from sharding.runtime.executor import State
from sharding.trees import Tree

# Float32 sums in another order differ by a few 1e-7 of their terms. Of gradients that cancel (a key's bias moves no
# softmax) only that rounding remains, and it is measured against 1e-3 of the module's typical gradient.
GRADIENT_TOLERANCE = 2e-4
LOSS_TOLERANCE = 1e-5
# A layout rounds to bfloat16 in other places than one device does: another draw of the same error, or a little more.
COARSE_FACTOR = 2.0
FLOOR = 1e-3
MOST = sys.float_info.max  # stands for what is not finite, which JSON can't say


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
        loss: Relative difference of its loss; None if it has none. A stage that holds several modules with losses
            knows their sum only, whose difference then stands for each.
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

    def document(self) -> dict:
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


def verify(
    config: ModelConfig, layouts: Sequence[Layout], steps: Sequence[ReferenceStep], seed: int
) -> Iterator[LayoutReport]:
    """Judges layouts one after another.

    Args:
        config: The model, in the precision that `steps` has as `coarse`.
        layouts: What to judge.
        steps: From `reference.reference_steps`.
        seed: The one that the steps were made with.

    Raises:
        PlanError: A plan that cannot hold this model or batch.
    """
    for layout in layouts:
        engine = Engine(config, layout.plan, steps[0].batch.arrays, Settings(seed=seed, transport=layout.transport))
        yield LayoutReport(layout.name, compare(engine, steps))


def compare(engine: Engine, steps: Sequence[ReferenceStep]) -> dict[str, ModuleReport]:
    """By module, the worst of what an engine finds in all steps."""
    worst: dict[str, ModuleReport] = {}
    for number, step in enumerate(steps):
        losses, gradients = run(engine, step, number)
        for name, report in judge(step, losses, gradients).items():
            worst[name] = worst[name].worse(report) if name in worst else report
    return worst


def run(engine: Engine, step: ReferenceStep, number: int) -> tuple[dict[tuple[str, ...], float], Tree]:
    """Losses by the modules whose loss a stage adds up, and gradients as the reference has them."""
    parameters = by_stage(step.parameters, engine.layouts)
    shardings = {node: engine.masters[node].shardings for node in parameters}
    masters = jax.tree.map(lambda leaf, sharding: put(np.asarray(leaf), sharding), parameters, shardings)
    state = State(masters, {}, engine.executor.agreement.start())
    gradients, decision = engine.executor.gradients(state, engine.place(step.batch.arrays, number))
    found = np.asarray(decision.losses)
    losses = {tuple(names.split("+")): float(found[at]) for names, at in engine.loss_positions.items()}
    return losses, by_module(gradients)


def judge(step: ReferenceStep, losses: dict[tuple[str, ...], float], gradients: Tree) -> dict[str, ModuleReport]:
    """By module, what a layout found in a step beside what it should have found."""
    errors = gradient_errors(gradients, step.expected.gradients)
    of_losses: dict[str, Difference] = {}
    for modules, loss in losses.items():
        expected, coarse = (sum(of.losses[name] for name in modules) for of in (step.expected, step.coarse))
        tolerance = LOSS_TOLERANCE + COARSE_FACTOR * loss_error(coarse, expected)
        of_losses |= dict.fromkeys(modules, Difference(loss_error(loss, expected), tolerance))
    reports = {}
    for module, by_parameter in errors.items():
        tolerances = _tolerances(step, module)
        differences = [
            Difference(error, tolerances.get(path, GRADIENT_TOLERANCE), path) for path, error in by_parameter.items()
        ]
        worst = max(differences, key=lambda each: each.excess)
        reports[module] = ModuleReport(of_losses.get(module), worst)
    return reports


def _tolerances(step: ReferenceStep, module: str) -> dict[str, float]:
    """By parameter, what a layout's gradient may differ: bfloat16's own error on one device gives the measure."""
    own = coarse_errors(step)[module]
    typical = float(np.median(list(own.values())))
    return {path: GRADIENT_TOLERANCE + COARSE_FACTOR * max(error, typical) for path, error in own.items()}


def coarse_errors(step: ReferenceStep) -> dict[str, dict[str, float]]:
    """What computing in the layouts' precision changes on one device."""
    return gradient_errors(step.coarse.gradients, step.expected.gradients)


def loss_error(found: float, expected: float) -> float:
    """Relative difference; of a loss that is zero the difference itself."""
    return _finite(abs(found - expected) / (abs(expected) or 1.0))


def gradient_errors(found: Tree, expected: Tree) -> dict[str, dict[str, float]]:
    """By module and parameter: norm(difference) / max(norm(gradient), 1e-3 rms(module's gradient) sqrt(size)).

    A parameter that only one side has, or whose shape differs, is infinitely far (`MOST`).
    """
    errors = {}
    for module in expected:
        there, here = _leaves(found.get(module, {})), _leaves(expected[module])
        squares = sum(float(np.sum(np.square(leaf))) for leaf in here.values())
        rms = np.sqrt(squares / sum(leaf.size for leaf in here.values()))
        errors[module] = {path: _error(there.get(path), here.get(path), rms) for path in dict.fromkeys((*here, *there))}
    return errors


def _error(found: np.ndarray | None, expected: np.ndarray | None, rms: float) -> float:
    if found is None or expected is None or found.shape != expected.shape:
        return MOST
    difference = float(np.linalg.norm(found - expected))
    scale = max(float(np.linalg.norm(expected)), FLOOR * rms * np.sqrt(expected.size))
    return _finite(difference / scale if scale else difference and MOST)


def _finite(error: float) -> float:
    return float(error) if np.isfinite(error) else MOST


def _leaves(tree: Tree) -> dict[str, np.ndarray]:
    """Leaves of a module by their paths, in float64."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf, np.float64) for path, leaf in leaves
    }
