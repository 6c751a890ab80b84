"""Comparison of layouts with the reference: the errors of a layout's results, by module.

The state before a step is put on a layout's devices, where the executor runs a training step and an evaluation. Losses
and gradients are compared with the results of one device, on the host in float64. The update is compared with an
update on one device by the layout's own gradients, because rounding can change the sign of a gradient, and with it the
whole step of Adam.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from configs.architectures import ModelConfig
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.evaluation import AnswerScore
from mmjax.training.verification.error_measures import (
    LARGEST_ERROR,
    change_error,
    global_norm,
    gradient_errors,
    gradient_scales,
    loss_errors,
    mean_scale_error,
    standard_error,
    state_error,
    zero_gradients,
)
from mmjax.training.verification.layout_results import (
    Leaves,
    StepResults,
    by_module,
    leaves_by_name,
    prepare_processes,
    step_gradients,
    step_results,
)
from mmjax.training.verification.layouts.layout_kinds import NamedLayout
from mmjax.training.verification.layouts.precisions import Precision, model_in
from mmjax.training.verification.reference import (
    MATMUL_PRECISION,
    Reference,
    ReferenceStep,
    RoundingErrors,
    repeats,
)
from mmjax.training.verification.reports import Difference, LayoutReport, ModuleReport, worst
from mmjax.training.verification.whole_arrays import share_from_first_process
from pallas_kernels.fp8 import use_unbounded_exponents
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.trees import Tree

# Float32 sums in another order differ by a few 1e-7 of their terms. Of gradients that cancel (a key's bias changes no
# softmax) only that rounding remains, and it is measured against 1e-3 of the module's typical gradient.
GRADIENT_TOLERANCE = 2e-4
LOSS_TOLERANCE = 1e-5
NORM_TOLERANCE = 1e-4
# An update is computed of the layout's own gradients, so that only the order of sums differs: the sum of the global
# norm, and with Muon the sums in products of divided matrices.
UPDATE_TOLERANCE = 1e-4
# In addition, this many times the rounding error of one device is tolerated, because a layout rounds other intermediate
# results. In bfloat16 the errors of some of hundreds of parameters are 2.2 times the largest error of the reference.
ROUNDING_FACTOR = 3.0


@dataclasses.dataclass(frozen=True)
class Limits:
    """The largest errors that are accepted in a precision, however large its rounding errors are.

    In bfloat16 a parameter's gradient has passed some hundred roundings of up to 2^-9 each, so that a right one can
    differ by several percent, and no limit can reveal a factor of 1.02 in a single parameter. That is revealed in
    float32, in which every layout is compared too. In bfloat16 errors are averaged: over all parameters of a module,
    and over `AVERAGED` perturbations of the parameters. The mean is compared with the mean of one device in bfloat16
    for the same parameters, whose systematic errors are alike.

    Measured over ten perturbations and all default layouts: means differ by at most 0.3% for tiny.gin; for
    tiny_experts.gin by 0.2%, but by 1.2% in the vision encoder, of which single gradients differ by up to 4.7%. With
    every module scaled by 1.02 and by 0.98, all are found but 0.98 in that encoder. The limit of a parameter is for
    gross errors: right gradients of vectors of 8 to 16 numbers differ by up to 37%.

    Attributes:
        loss: Largest relative error of a loss.
        score: Share of the questions whose answer may be correct in one and wrong in the other: two tokens can be about
            equally likely.
        margin: Targets that are the likeliest token, or are not, by less than this share of the largest logit are not
            compared one by one (`LikelyTokens`).
        tokens: Share of the others that may be called correct in one and wrong in the other; in float32 not one may.
        parameter: Largest relative error of a parameter's gradient; a zero gradient is limited by rounding errors.
        least_scale, scale: Errors of all gradients of a module in the direction of the reference (`gradient_scales`):
            the error that is accepted even if rounding errors are smaller, and the limit. In bfloat16, errors of
            the mean.
    """

    loss: float
    score: float
    margin: float
    tokens: float
    parameter: float
    least_scale: float
    scale: float

    def scale_tolerance(self, rounding: float) -> float:
        """The tolerance of a scale whose rounding error is known."""
        return min(self.scale, max(self.least_scale, ROUNDING_FACTOR * rounding))


LIMITS: dict[Precision, Limits] = {
    "float32": Limits(
        loss=1e-4, score=0.01, margin=1e-3, tokens=1e-9, parameter=1e-2, least_scale=GRADIENT_TOLERANCE, scale=1e-3
    ),
    "bfloat16": Limits(loss=1e-2, score=0.1, margin=0.05, tokens=0.05, parameter=0.4, least_scale=5e-3, scale=1.5e-2),
    "fp8": Limits(
        loss=1e-3, score=0.05, margin=0.02, tokens=0.02, parameter=0.1, least_scale=GRADIENT_TOLERANCE, scale=1e-2
    ),
}

ALL_MODULES = "all modules"
"""Name of the report of the global norm of all modules' gradients, by which they are clipped.

A layout's norm is compared with the norm of its own gradients, so that it is wrong only if the sum over stages is."""

SCALE = "(scale of all parameters)"
"""Stands for a parameter in the difference of `gradient_scales`."""


def tolerances_in_words() -> str:
    """Describes the figures of a report, and how large they may be."""
    rounding = f"each plus {ROUNDING_FACTOR:g} times the rounding error of one device"
    return (
        "Relative differences from one device, the largest of all arrays and steps. Allowed: loss and evaluation "
        f"{LOSS_TOLERANCE:.1e}, gradient {GRADIENT_TOLERANCE:.1e}, {rounding}; update {UPDATE_TOLERANCE:.1e}."
    )


def verify_layouts(config: ModelConfig, layouts: Sequence[NamedLayout], reference: Reference) -> Iterator[LayoutReport]:
    """Compares layouts with a reference, one after another; all processes call this together and get the same reports.

    Args:
        config: The model.
        layouts: The layouts to compare; a layout can have a transport of its own.
        reference: The result of `run_reference`.

    Raises:
        PlanError: A plan cannot hold this model or batch; names the layout.
    """
    for layout in layouts:
        implementation = (
            use_attention_implementation(layout.attention) if layout.attention else contextlib.nullcontext()
        )
        with jax.default_matmul_precision(MATMUL_PRECISION), implementation, use_unbounded_exponents():
            reference_of = reference.with_optimizer(config, layout.optimizer(reference.settings.optimizer))
            settings = dataclasses.replace(
                reference_of.settings, transport=layout.transport or reference.settings.transport
            )
            model = model_in(config, layout.precision)
            engine = _make_engine(model, layout, reference, settings) if _takes_part(layout.plan) else None
            prepare_processes(engine)
            modules = compare_with_reference(engine, reference_of, layout.precision)
        yield _share_report(LayoutReport(layout.name, modules))


def _make_engine(model: ModelConfig, layout: NamedLayout, reference: Reference, settings: EngineSettings) -> Engine:
    """Makes the engine of a layout; an error names the layout."""
    try:
        return Engine(model, layout.plan, reference.batch_spec, settings)
    except PlanError as error:
        raise PlanError(f"{layout.name}: {error}") from error


def _takes_part(plan: Plan) -> bool:
    """Whether this process has a device of the plan."""
    devices = jax.devices()
    return any(devices[number].process_index == jax.process_index() for unit in plan.units for number in unit.devices)


def _share_report(report: LayoutReport) -> LayoutReport:
    """Returns the report of process 0, in all processes."""
    if jax.process_count() == 1:
        return report
    shared = share_from_first_process({("report",): np.frombuffer(report.to_message(), np.uint8)})
    return LayoutReport.from_message(shared["report",].tobytes())


def compare_with_reference(
    engine: Engine | None, reference: Reference, precision: Precision
) -> dict[str, ModuleReport]:
    """Returns the worst differences of all steps of a reference, by module; of several processes, the first has them.

    Args:
        engine: The layout's engine; None if this process has no device of it.
        reference: The result of `run_reference`.
        precision: Precision of the layout.
    """
    reports: dict[str, ModuleReport] = {}
    scales: dict[str, list[float]] = {}
    for number, inputs in enumerate(reference.inputs):
        results = step_results(engine, inputs, number)
        perturbed = [
            step_gradients(engine, dataclasses.replace(inputs, parameters=parameters), number)
            for parameters in inputs.perturbed_parameters(precision, number, repeats(precision, len(reference.inputs)))
        ]
        if jax.process_index() == 0:
            for name, report in compare_step(reference, number, precision, results).items():
                reports[name] = reports.get(name, ModuleReport()).worse(report)
            if precision == "bfloat16":
                _add_scales(scales, reference.steps[number], perturbed)
    for name, module_scales in scales.items():
        expected = reference.rounding[precision].scales[name]
        tolerance = LIMITS[precision].scale_tolerance(standard_error(expected))
        what = f"(scale of all parameters, mean of {len(module_scales)})"
        mean = Difference(mean_scale_error(module_scales, expected), tolerance, what)
        reports[name] = reports[name].worse(ModuleReport(gradient=mean))
    return reports


def _add_scales(scales: dict[str, list[float]], step: ReferenceStep, gradients: Sequence[Leaves]) -> None:
    """Adds the scales of the gradients of a step's perturbed parameters, by module."""
    for found, expected in zip(gradients, step.perturbed_gradients, strict=True):
        for module, scale in gradient_scales(by_module(found), by_module(expected)).items():
            scales.setdefault(module, []).append(scale)


def compare_step(
    reference: Reference, number: int, precision: Precision, results: StepResults
) -> dict[str, ModuleReport]:
    """Returns the differences between a layout's results of a step and the reference, by module."""
    step, rounding, limits = reference.steps[number], reference.rounding[precision], LIMITS[precision]
    losses = _loss_differences(results.losses, step, rounding)
    evaluations = _loss_differences(results.evaluation_losses, step, rounding)
    gradients = _gradient_differences(by_module(results.gradients), step, rounding)
    updates = _update_differences(reference, number, results)
    reports = {
        module: ModuleReport(losses.get(module), gradients.get(module), updates.get(module), evaluations.get(module))
        for module in step.parameters
    }
    norm = global_norm(by_module(results.gradients))
    norm_error = loss_errors({"norm": results.gradient_norm}, {"norm": norm})["norm"]
    norm_difference = Difference(norm_error, NORM_TOLERANCE, "(global norm of the gradients)")
    evaluation = worst(
        (_score_difference(results.score, step.score, limits.score), _token_difference(results.correct, step, limits))
    )
    return {**reports, ALL_MODULES: ModuleReport(gradient=norm_difference, evaluation=evaluation)}


def _loss_differences(
    losses: Mapping[str, float], step: ReferenceStep, rounding: RoundingErrors
) -> dict[str, Difference]:
    differences: dict[str, Difference] = {}
    for name, error in loss_errors(losses, step.losses).items():
        module, _, of_layers = name.partition("/")
        tolerance = min(LIMITS[rounding.precision].loss, LOSS_TOLERANCE + ROUNDING_FACTOR * rounding.losses[name])
        found = worst((differences.get(module), Difference(error, tolerance, of_layers)))
        assert found
        differences[module] = found
    return differences


def _gradient_differences(
    gradients: Tree, step: ReferenceStep, rounding: RoundingErrors
) -> dict[str, Difference | None]:
    limits = LIMITS[rounding.precision]
    found, zero, scales = {}, zero_gradients(step.gradients), gradient_scales(gradients, step.gradients)
    for module, errors in gradient_errors(gradients, step.gradients).items():
        module_rounding = rounding.gradients[module]
        typical = float(np.median(list(module_rounding.values()))) if module_rounding else 0.0
        differences = []
        for path, error in errors.items():
            is_zero = path in zero.get(module, ())  # up to rounding errors, which alone are then compared
            factor, limit = (2 * ROUNDING_FACTOR, math.inf) if is_zero else (ROUNDING_FACTOR, limits.parameter)
            tolerance = GRADIENT_TOLERANCE + factor * max(module_rounding.get(path, 0.0), typical)
            differences.append(Difference(error, min(tolerance, limit), path))
        found[module] = worst(differences)
        agrees = found[module] and found[module].excess <= 1  # otherwise the parameter is the better message
        if agrees and module in scales and rounding.precision != "bfloat16":
            tolerance = limits.scale_tolerance(max(abs(scale - 1) for scale in rounding.scales[module]))
            found[module] = worst((found[module], Difference(abs(scales[module] - 1), tolerance, SCALE)))
    return found


def _update_differences(reference: Reference, number: int, results: StepResults) -> dict[str, Difference]:
    """Returns the worst difference of a parameter's change, or of a leaf of the optimizer state, by module."""
    step, inputs = reference.steps[number], reference.inputs[number]
    gradients = _like(step.gradients, results.gradients)
    if gradients is None:
        missing = Difference(LARGEST_ERROR, UPDATE_TOLERANCE, "(gradients are missing)")
        return dict.fromkeys(step.gradients, missing)
    expected_parameters, expected_state = reference.optimizer.update(
        step.parameters, step.optimizer_state, gradients, reference.settings.optimizer.max_grad_norm
    )
    differences: dict[str, Difference] = {}

    def add(name: tuple[str, ...], error: float) -> None:
        module, *path = name
        found = worst((differences.get(module), Difference(error, UPDATE_TOLERANCE, "/".join(path))))
        assert found
        differences[module] = found

    for name, leaf in leaves_by_name(expected_parameters).items():
        before, after = inputs.parameters[name], results.parameters.get(name)
        add(name, change_error(before, after, np.asarray(leaf), UPDATE_TOLERANCE))
    for name, leaf in leaves_by_name(expected_state).items():
        add(name, state_error(results.optimizer_state.get(name), np.asarray(leaf)))
    return differences


def _like(template: Tree, leaves: Leaves) -> Tree | None:
    """The leaves as a tree like the template; None if they are not the same leaves."""
    expected = leaves_by_name(template)
    if {name: leaf.shape for name, leaf in leaves.items()} != {name: leaf.shape for name, leaf in expected.items()}:
        return None
    return jax.tree.unflatten(jax.tree.structure(template), [leaves[name] for name in expected])


def _score_difference(score: AnswerScore, expected: AnswerScore, limit: float) -> Difference:
    if score.questions != expected.questions:
        what = f"({score.questions} questions of {expected.questions})"
        return Difference(LARGEST_ERROR, limit, what)
    return Difference(abs(score.correct - expected.correct) / max(1, expected.questions), limit, "(score)")


def _token_difference(correct: np.ndarray, step: ReferenceStep, limits: Limits) -> Difference:
    """Returns the share of the targets that only one of layout and reference calls the likeliest token."""
    compared = step.margins > limits.margin
    if correct.shape != step.correct.shape:
        return Difference(LARGEST_ERROR, limits.tokens, "(correct tokens)")
    wrong = int(np.sum(correct[compared] != step.correct[compared]))
    return Difference(wrong / max(1, int(np.sum(compared))), limits.tokens, "(correct tokens)")
