"""Verification of a configured run: the choice of layouts, and their comparison with a reference on the run's data.

`python -m mmjax.verify` and `mmjax.verify` call it.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import jax

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.datasets.dataset import Dataset
from data.packing.pipeline import training_batches
from mmjax.models.model import model_modules
from mmjax.models.structure.parameters import abstract_module_parameters
from mmjax.training.engine.placement import check_host_memory
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.verification.comparison import verify_layouts
from mmjax.training.verification.layouts.default_layouts import default_layouts
from mmjax.training.verification.layouts.divided_plans import GlobalRows
from mmjax.training.verification.layouts.layout_kinds import NamedLayout
from mmjax.training.verification.layouts.precisions import model_in, precisions_of
from mmjax.training.verification.reference import MATMUL_PRECISION, Reference, run_reference
from mmjax.training.verification.reports import LayoutReport
from mmjax.training.verification.whole_arrays import check_message_size
from pallas_kernels.fp8 import use_unbounded_exponents
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.plans.unit_checks import check_positions
from sharding.schedules.named.registry import find_schedule
from sharding.specs.modules import module_graph


def layouts_to_verify(
    plans: Mapping[str, Plan], model: ModelConfig, rows: GlobalRows, *, with_defaults: bool
) -> tuple[list[NamedLayout], dict[str, str]]:
    """Returns the layouts of plans, after the layouts of `default_layouts` if they are wanted.

    Args:
        plans: Plans by name.
        model: The model; if it computes in bfloat16 or has FP8 operands, every layout is compared in float32 too.
        rows: Rows of a global batch.
        with_defaults: Whether the default layouts are compared too; a plan that is impossible is then left out.

    Returns:
        The layouts, and the reasons why others are impossible, by name.

    Raises:
        PlanError: A plan is impossible, and there are no default layouts; names it.
    """
    graph, devices = module_graph(model), jax.device_count()
    layouts, refused = default_layouts(graph, rows, devices) if with_defaults else ([], {})
    for name, plan in plans.items():
        try:
            resolve_plan(plan, graph, devices, rows.count)
            find_schedule(plan.schedule)
            check_positions(plan.units, graph, rows.positions)
            layouts.append(NamedLayout(name, plan))
        except PlanError as error:
            if not with_defaults:
                raise PlanError(f"{name}: {error}") from error
            refused[name] = str(error)
    for layout in layouts:
        try:
            check_host_memory(layout.plan, jax.devices(), layout.state_memory or "device")
        except PlanError as error:
            refused[layout.name] = str(error)
    layouts = [layout for layout in layouts if layout.name not in refused]
    if jax.process_count() > 1:
        layouts = [layout.across_processes() for layout in layouts]
    return [each for layout in layouts for each in layout.in_precisions(precisions_of(model))], refused


def message_size(model: ModelConfig, steps: int) -> int:
    """Bytes of the longest message between processes: all steps' parameters and two moments, or a step's results."""
    shapes = jax.tree.leaves([abstract_module_parameters(module) for module in model_modules(model)])
    arrays_of_all_steps, arrays_of_a_step = 3 * steps, 4  # a step's results have gradients too
    return 4 * sum(math.prod(leaf.shape) for leaf in shapes) * max(arrays_of_all_steps, arrays_of_a_step)


def verify_run(
    model: ModelConfig,
    data: DataConfig,
    dataset: Dataset,
    layouts: Sequence[NamedLayout],
    settings: EngineSettings,
    steps: int,
) -> Iterator[LayoutReport]:
    """Runs the reference on the first batches of a run, and returns the comparisons with it, made one after another.

    Layouts with FP8 operands have a reference with the same operands, and come last. All processes of a run call this
    together, and get the same reports.

    Args:
        model: The model.
        data: The data configuration, by which samples become batches.
        dataset: The samples.
        layouts: The layouts to compare.
        settings: The seed, which parts train, and the transport of layouts without one of their own.
        steps: Number of steps to compare; between them, training on one device moves the parameters.

    Raises:
        PlanError: A plan cannot hold the model or the batch.
        DataError: The data set does not fit the model or the data configuration.
        UserError: Several processes cannot exchange the arrays of so large a model.
    """
    if jax.process_count() > 1:
        check_message_size(message_size(model, steps))
    comparisons = []
    for model_compared, chosen in _by_reference(model, layouts):
        reference = _reference(model_compared, data, dataset, settings, steps)
        comparisons.append(verify_layouts(model_compared, chosen, reference))
    return itertools.chain.from_iterable(comparisons)


def _by_reference(
    model: ModelConfig, layouts: Sequence[NamedLayout]
) -> Iterator[tuple[ModelConfig, Sequence[NamedLayout]]]:
    """Yields the layouts that have a reference in common, with its model."""
    in_fp8 = [layout for layout in layouts if layout.precision == "fp8"]
    native = [layout for layout in layouts if layout.precision != "fp8"]
    if native or not in_fp8:
        yield model.with_fp8(()), native
    if in_fp8:
        yield model_in(model, "fp8"), in_fp8


def _reference(
    model: ModelConfig, data: DataConfig, dataset: Dataset, settings: EngineSettings, steps: int
) -> Reference:
    batches = training_batches(data, model, dataset)
    try:
        with jax.default_matmul_precision(MATMUL_PRECISION), use_unbounded_exponents():
            return run_reference(model, data, batches, steps, settings)
    finally:
        batches.close()
