"""A training state as the arrays of a checkpoint, `{module: {piece: {layer: ...}}}`, whatever the plan.

Master weights and moments are arrays of one layer each, so nothing is split and nothing is computed: a save takes
the arrays as they are. A stage is on any devices of any processes; each process has an `ArrayPart` of every array.
"""

import weakref
from collections.abc import Callable, Mapping

import jax

from mmjax.training.checkpoints.array_part import ArrayPart
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.stage_layouts import piece_key, trees_by_module, trees_by_stage
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.pipeline import TrainState
from sharding.trees import Tree

_ABSENT: weakref.WeakKeyDictionary[Engine, tuple[dict[StageId, Tree], dict[StageId, Tree]]]
_ABSENT = weakref.WeakKeyDictionary()  # `_absent_parts`: to trace optimizers at every save would hold the steps


def trained_keys(engine: Engine) -> frozenset[str]:
    """Returns the keys `module/piece` of all pieces that have optimizer state."""
    return frozenset(piece_key(key) for stage in engine.stages.values() for key in stage.trained_keys)


def _abstract_masters(engine: Engine, stage_id: StageId) -> Tree:
    return engine.stages[stage_id].master_weights.abstract_weights()


def arrays_to_save(engine: Engine, state: TrainState) -> dict[str, Tree]:
    """The trees `parameters` and `optimizer` of a checkpoint, of the same arrays in every process, on the host."""
    if engine not in _ABSENT:
        _ABSENT[engine] = _absent_parts(engine)

    def parts(trees: Mapping[StageId, Tree], absent: Mapping[StageId, Tree]) -> Tree:
        local = jax.tree.map(ArrayPart.of, dict(trees))
        # In the order of stages in all processes: of a layer that two stages have, the later one's is saved.
        return trees_by_module({stage_id: (local | absent).get(stage_id, {}) for stage_id in engine.stages})

    absent_masters, absent_state = _ABSENT[engine]
    trees = {
        "parameters": parts(state.master_weights, absent_masters),
        "optimizer": parts(state.optimizer_state, absent_state),
    }
    # All copies are under way before the first is waited for.
    return jax.tree.map(ArrayPart.on_host, trees, is_leaf=lambda leaf: isinstance(leaf, ArrayPart))


def _absent_parts(engine: Engine) -> tuple[dict[StageId, Tree], dict[StageId, Tree]]:
    """Makes parts without shards of the parameters and optimizer state of stages without a device of this process."""
    stages = [stage_id for stage_id in engine.stages if stage_id not in engine.local_stages]

    def absent(abstract: Callable[[Engine, StageId], Tree]) -> dict[StageId, Tree]:
        return {stage_id: jax.tree.map(ArrayPart.absent, abstract(engine, stage_id)) for stage_id in stages}

    return absent(_abstract_masters), absent(Engine.abstract_optimizer_state)


def abstract_arrays_to_load(engine: Engine, saved_pieces: frozenset[str]) -> dict[str, Tree]:
    """Returns the abstract arrays that this process reads from a checkpoint with optimizer state of some pieces."""
    optimizer_state = {
        stage_id: {
            key: layers
            for key, layers in engine.abstract_optimizer_state(stage_id).items()
            if piece_key(key) in saved_pieces
        }
        for stage_id in engine.local_stages
    }
    trees = {
        "parameters": trees_by_module(
            {stage_id: _abstract_masters(engine, stage_id) for stage_id in engine.local_stages}
        ),
        "optimizer": trees_by_module(optimizer_state),
    }
    return {name: tree for name, tree in trees.items() if tree}


def state_from_arrays(engine: Engine, loaded: Mapping[str, Tree]) -> TrainState:
    """Makes the state from the arrays of `abstract_arrays_to_load`; missing optimizer state starts anew."""
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
