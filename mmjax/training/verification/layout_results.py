"""The results of a layout for a step: losses and gradients, an update by these gradients, and an evaluation.

`comparison.py` compares them with the results of `reference.py`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.packing.global_batch import GlobalBatch
from mmjax.models.structure.parameters import place_host_array
from mmjax.training.engine.compilation import compile_evaluation, compile_step
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.stage_layouts import piece_key
from mmjax.training.evaluation import AnswerScore, local_score
from mmjax.training.verification.layouts.precisions import Precision, parameter_dtype, rounding_unit
from mmjax.training.verification.whole_arrays import Name, gather_whole_arrays
from sharding.runtime.coordination import wait_for_processes
from sharding.runtime.pipeline import TrainState
from sharding.trees import Tree

Leaves = dict[Name, np.ndarray]
"""Parameters, gradients, or leaves of the optimizer state, by module, piece, layer and the path below the layer."""


@dataclasses.dataclass(frozen=True, eq=False)
class StepInputs:
    """The inputs of every layout for a step.

    Attributes:
        batch: The packed batch.
        parameters: Parameters in float32; numbers of the layouts' precision, so that casting them adds no error.
        optimizer_state: Optimizer state of the pieces that train.
    """

    batch: GlobalBatch
    parameters: Leaves
    optimizer_state: Leaves

    def perturbed_parameters(self, precision: Precision, number: int, count: int) -> Iterator[Leaves]:
        """Yields the parameters of step `number` with `count` perturbations, the same in every process."""
        return (perturb(self.parameters, precision, (number, repeat)) for repeat in range(count))


def perturb(leaves: Leaves, precision: Precision, seed: tuple[int, ...]) -> Leaves:
    """Multiplies parameters by 1 + u, with u uniform within a precision's `rounding_unit`, and rounds them to it.

    All intermediate results then round differently, so that rounding errors become independent of each other.
    """
    random, unit = np.random.default_rng(seed), rounding_unit(precision)

    def perturbed(leaf: np.ndarray) -> np.ndarray:
        factors = (1 + random.uniform(-unit, unit, leaf.shape)).astype(np.float32)
        return (np.asarray(leaf) * factors).astype(jnp.dtype(parameter_dtype(precision))).astype(np.float32)

    return {name: perturbed(leaves[name]) for name in sorted(leaves)}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StepResults:
    """The results of a layout for a step.

    Attributes:
        losses: Losses by name.
        gradients: Gradients of the pieces that train.
        gradient_norm: The global norm, by which gradients are clipped.
        parameters: Parameters after the update, including frozen ones.
        optimizer_state: Optimizer state after the update.
        evaluation_losses: Losses of the evaluation by name.
        score: Score of the questions of the batch.
        correct: int8[n, s], 1 where the evaluation calls the target the likeliest token, 0 where not, else invalid.
    """

    losses: dict[str, float]
    gradients: Leaves
    gradient_norm: float
    parameters: Leaves
    optimizer_state: Leaves
    evaluation_losses: dict[str, float]
    score: AnswerScore
    correct: np.ndarray


def leaves_by_name(tree: Any) -> dict[Name, Any]:
    """Returns the leaves of a tree by their path; a key such as `module/piece` is split into several names."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def host_leaves(tree: Any) -> Leaves:
    """Returns `leaves_by_name` as NumPy arrays."""
    return {name: np.asarray(leaf) for name, leaf in leaves_by_name(tree).items()}


def _name(path: tuple[Any, ...]) -> Name:
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/").split("/"))


def _stage_leaf_name(path: tuple[Any, ...]) -> Name:
    """Returns the name of a leaf of a stage's tree, by module, piece and layer, whichever stack of the stage has it."""
    key, *rest = path
    return _name((jax.tree_util.DictKey(piece_key(key.key)), *rest))


def by_module(leaves: Leaves) -> Tree:
    """Groups leaves by module: `{module: {path: leaf}}`."""
    modules: Tree = {}
    for (module, *path), leaf in leaves.items():
        modules.setdefault(module, {})["/".join(path)] = leaf
    return modules


def step_results(engine: Engine | None, inputs: StepInputs, number: int) -> StepResults:
    """Returns the results of all processes together, which call this together.

    Args:
        engine: The layout's engine; None if this process has no device of it.
        inputs: Inputs of the step.
        number: Number of the step.
    """
    found = gather_whole_arrays(dict(_local_results(engine, inputs, number)) if engine else {})

    def part(kind: str) -> dict[Name, np.ndarray]:
        return {name[1:]: array for name, array in found.items() if name[0] == kind}

    evaluation_losses: dict[str, float] = {}
    for (*_, name), losses in part("evaluation").items():
        evaluation_losses[name] = evaluation_losses.get(name, 0.0) + float(losses.sum(dtype=np.float64))
    return StepResults(
        losses={name: float(loss) for (name,), loss in part("losses").items()},
        gradients=part("gradients"),
        gradient_norm=float(found["gradient_norm",]),
        parameters=part("parameters"),
        optimizer_state=part("optimizer_state"),
        evaluation_losses=evaluation_losses,
        score=AnswerScore(*np.sum(list(part("answers").values()), axis=0).tolist()),
        correct=_join_microbatches(part("correct"), inputs.batch.sample_ids.shape[0]),
    )


def _join_microbatches(microbatches: dict[Name, np.ndarray], rows: int) -> np.ndarray:
    """Joins microbatches `[n / m, s]` by number to rows `[n, s]`; the rows of missing microbatches are invalid."""
    first = next(iter(microbatches.values()), np.zeros((1, 1), np.int8))
    joined = np.full((rows, first.shape[1]), np.iinfo(np.int8).min, np.int8)
    for (number,), array in microbatches.items():
        start = int(number) * len(array)
        joined[start : start + len(array)] = array
    return joined


def step_gradients(engine: Engine | None, inputs: StepInputs, number: int) -> Leaves:
    """Returns only the gradients of `step_results`."""
    local = {}
    if engine:
        state, batch = _place_state(engine, inputs), engine.place_batch(inputs.batch.arrays, number)
        local = dict(_leaves_of_stages(engine.executor.gradients(state, batch)[0]))
    return gather_whole_arrays(local)


def _local_results(engine: Engine, inputs: StepInputs, number: int) -> Iterator[tuple[Name, Any]]:
    """Yields the results on this process's devices: names, which begin with the kind of result, and arrays."""
    executor, state = engine.executor, _place_state(engine, inputs)
    batch = engine.place_batch(inputs.batch.arrays, number)
    gradients, summary = executor.gradients(state, batch)
    evaluations = executor.evaluate(executor.compute_weights(state), batch)
    yield ("gradient_norm",), summary.gradient_norm
    for name, loss in engine.losses_by_name(summary).items():
        yield ("losses", name), np.array(loss)
    for (unit, stage), microbatches in evaluations.items():
        for microbatch, evaluation in microbatches.items():
            for name, loss in evaluation.losses.items():
                yield ("evaluation", unit, str(stage), str(microbatch), name), loss
    backbone = engine.config.backbone.name
    for microbatches in evaluations.values():
        for microbatch, evaluation in microbatches.items():
            if f"{backbone}/correct" in evaluation.auxiliary_metrics:
                yield ("correct", str(microbatch)), evaluation.auxiliary_metrics[f"{backbone}/correct"]
    score = local_score(evaluations, inputs.batch, backbone)
    yield ("answers", str(jax.process_index())), np.array(dataclasses.astuple(score))
    for name, leaf in _leaves_of_stages(gradients):
        yield ("gradients", *name), leaf
    state, _ = executor.update(state, gradients)
    for name, leaf in _leaves_of_stages(state.master_weights):
        yield ("parameters", *name), leaf
    for name, leaf in _leaves_of_stages(state.optimizer_state):
        yield ("optimizer_state", *name), leaf


def _leaves_of_stages(trees: dict[tuple[str, int], Tree]) -> Iterator[tuple[Name, Any]]:
    for tree in trees.values():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            yield _stage_leaf_name(path), leaf


def _place_state(engine: Engine, inputs: StepInputs) -> TrainState:
    """Places the inputs as the engine has its state; moments of another type are converted."""

    def place(leaves: Leaves, abstract: Tree) -> Tree:
        def place_leaf(path: tuple[Any, ...], array: jax.ShapeDtypeStruct) -> jax.Array:
            values = leaves[_stage_leaf_name(path)].astype(array.dtype)
            assert array.sharding is not None
            return place_host_array(values, array.sharding)

        return jax.tree_util.tree_map_with_path(place_leaf, abstract)

    masters, optimizer_state = {}, {}
    for stage_id, stage in engine.local_stages.items():
        masters[stage_id] = place(inputs.parameters, stage.master_weights.abstract_weights())
        if stage.trained_keys:
            optimizer_state[stage_id] = place(inputs.optimizer_state, engine.abstract_optimizer_state(stage_id))
    return TrainState(masters, optimizer_state, engine.executor.global_reduction.initial_flag())


def prepare_processes(engine: Engine | None) -> None:
    """Compiles the layout's programs, and waits for all processes to do so: their first exchange has a time limit."""
    if jax.process_count() == 1:
        return  # programs are compiled when they first run
    if engine:
        compile_step(engine, lambda done, total: None)
        compile_evaluation(engine, lambda done, total: None)
    wait_for_processes("the verification of a layout")
