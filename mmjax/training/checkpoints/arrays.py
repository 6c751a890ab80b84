"""A training state as the arrays of a checkpoint, `{module: {piece: {layer: ...}}}`, whatever the plan.

Master weights and moments are arrays of one layer each, so nothing is taken apart and nothing is computed: a save takes
the arrays as they are. A stage is on any devices of any processes; across processes each array is an `ArrayPart`.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from mmjax.training.checkpoints.array_part import ArrayPart
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.stage_layouts import trees_by_module, trees_by_stage
from sharding.plans.stage_graph import StageId
from sharding.runtime.pipeline import TrainState
from sharding.trees import Tree


def abstract_masters(engine: Engine, stage_id: StageId) -> Tree:
    """Shape, dtype and sharding of a stage's master weights: `{key: {layer: ...}}`."""
    masters = engine.stages[stage_id].master_weights
    return {
        key: {layer: _abstract(masters.layer_stacks[key].shapes, shardings) for layer, shardings in layers.items()}
        for key, layers in masters.shardings.items()
    }


def abstract_optimizer_state(engine: Engine, stage_id: StageId) -> Tree:
    """Shape, dtype and sharding of a stage's optimizer state, of the keys that train: `{key: {layer: ...}}`."""
    layer_stacks = engine.stages[stage_id].master_weights.layer_stacks
    return {
        key: {
            layer: _abstract(jax.eval_shape(engine.optimizers[key].init, layer_stacks[key].shapes), shardings)
            for layer, shardings in layers.items()
        }
        for key, layers in engine.optimizer_shardings(stage_id).items()
    }


def _abstract(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding), shapes, shardings
    )


def arrays_to_save(engine: Engine, state: TrainState) -> dict[str, Tree]:
    """The trees `parameters` and `optimizer` of a checkpoint, the same on every process."""
    if jax.process_count() == 1:
        return {
            "parameters": trees_by_module(state.master_weights),
            "optimizer": trees_by_module(state.optimizer_state),
        }

    def parts(trees: Mapping[StageId, Tree], abstract: Callable[[Engine, StageId], Tree]) -> Tree:
        by_stage = {}
        for stage_id in engine.stages:
            leaves, structure = jax.tree.flatten(abstract(engine, stage_id))
            arrays = structure.flatten_up_to(trees[stage_id]) if stage_id in trees else itertools.repeat(None)
            by_stage[stage_id] = structure.unflatten(list(map(ArrayPart, leaves, arrays)))
        return trees_by_module(by_stage)

    return {
        "parameters": parts(state.master_weights, abstract_masters),
        "optimizer": parts(state.optimizer_state, abstract_optimizer_state),
    }


def abstract_arrays_to_load(engine: Engine, saved_keys: frozenset[str]) -> dict[str, Tree]:
    """What this process needs of a checkpoint that has optimizer state of the keys `saved_keys`, as abstract arrays."""
    optimizer_state = {
        stage_id: {
            key: layers for key, layers in abstract_optimizer_state(engine, stage_id).items() if key in saved_keys
        }
        for stage_id in engine.local_stages
    }
    trees = {
        "parameters": trees_by_module(
            {stage_id: abstract_masters(engine, stage_id) for stage_id in engine.local_stages}
        ),
        "optimizer": trees_by_module(optimizer_state),
    }
    return {name: tree for name, tree in trees.items() if tree}


def state_from_arrays(engine: Engine, loaded: Mapping[str, Tree]) -> TrainState:
    """The state of the arrays that `abstract_arrays_to_load` names; optimizer state that is not there starts anew."""
    stages = engine.local_stages
    layouts = {stage_id: stage.layout for stage_id, stage in stages.items()}
    masters = trees_by_stage(loaded["parameters"], layouts)
    optimizer_state = trees_by_stage(loaded.get("optimizer", {}), layouts)
    incomplete = {stage_id for stage_id in stages if stages[stage_id].trained_keys - set(optimizer_state[stage_id])}
    state = engine.state_from_masters({stage_id: masters[stage_id] for stage_id in incomplete})
    for stage_id, stage in stages.items():
        if stage.trained_keys:
            state.optimizer_state[stage_id] = state.optimizer_state.get(stage_id, {}) | optimizer_state[stage_id]
    return TrainState(masters, state.optimizer_state, state.all_finite)
