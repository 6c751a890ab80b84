"""A state's arrays as a checkpoint holds them, `{module: {piece: {layer: ...}}}`, whatever the plan.

Masters and moments are arrays of one layer each, so nothing is taken apart and nothing computed: a save takes the
arrays as they are. Across processes it adds, on devices of another process, one buffer of zeros for each shape and
type of a layer's shards (`_seen_by_several`).
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from configs.errors import UserError
from mmjax.training.engine import Engine
from mmjax.training.stages import by_module, by_stage
from sharding.runtime.executor import State
from sharding.runtime.stage import Node
from sharding.trees import Tree

Zeros = Callable[[jax.Device, tuple[int, ...], Any], jax.Array]


def abstract_masters(engine: Engine, node: Node) -> Tree:
    """Shape, type and sharding of a stage's masters: `{key: {layer: ...}}`."""
    masters = engine.masters[node]
    return {
        key: {layer: _abstract(masters.pieces[key].shapes, placed) for layer, placed in layers.items()}
        for key, layers in masters.shardings.items()
    }


def abstract_optimizer(engine: Engine, node: Node) -> Tree:
    """Shape, type and sharding of a stage's optimizer state, of trained keys only: `{key: {layer: ...}}`."""
    pieces = engine.masters[node].pieces
    return {
        key: {
            layer: _abstract(jax.eval_shape(engine.transformation.init, pieces[key].shapes), placed)
            for layer, placed in layers.items()
        }
        for key, layers in engine.optimizer_shardings(node).items()
    }


def _abstract(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding), shapes, shardings
    )


def to_save(engine: Engine, state: State) -> dict[str, Tree]:
    """The `parameters` and `optimizer` to save, the same tree on every process."""
    if jax.process_count() == 1:
        return {"parameters": by_module(state.masters), "optimizer": by_module(state.optimizer)}
    made: dict[Any, jax.Array] = {}

    def zeros(device: jax.Device, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        key = (device, shape, dtype)
        if key not in made:
            made[key] = jax.device_put(np.zeros(shape, dtype), device)
        return made[key]

    def all_of(trees: dict[Node, Tree], abstract: Callable[[Engine, Node], Tree]) -> Tree:
        whole = {}
        for node in engine.layouts:
            leaves, structure = jax.tree.flatten(abstract(engine, node))
            held = structure.flatten_up_to(trees[node]) if node in trees else itertools.repeat(None)
            seen = [_seen_by_several(leaf, array, zeros) for leaf, array in zip(leaves, held, strict=False)]
            whole[node] = structure.unflatten(seen)
        return by_module(whole)

    return {
        "parameters": all_of(state.masters, abstract_masters),
        "optimizer": all_of(state.optimizer, abstract_optimizer),
    }


def _seen_by_several(abstract: jax.ShapeDtypeStruct, array: jax.Array | None, zeros: Zeros) -> jax.Array:
    """The array in a form that orbax saves when there are several processes: it refuses one that a single one holds.

    Such an array becomes the first of two copies on a mesh that has devices of other processes too; the second copy
    is zeros. Only the first is written, because replicas do not share the writing (`SAVING` in checkpoint.py).
    """
    sharding = abstract.sharding
    assert isinstance(sharding, NamedSharding)
    shards = {} if array is None else {shard.device: shard.data for shard in array.addressable_shards}
    owners = {device.process_index for device in sharding.device_set}
    if len(owners) == 1:
        devices = sharding.mesh.devices
        others = [device for device in jax.devices() if device.process_index not in owners][: devices.size]
        if len(others) < devices.size:
            raise UserError(
                f"process {owners.pop()} alone holds a stage of {devices.size} devices, more than the {len(others)} of "
                "all other processes, and its checkpoint needs as many there; spread the stage over processes"
            )
        pair = Mesh(np.stack([devices, np.array(others).reshape(devices.shape)]), ("copy", *sharding.mesh.axis_names))
        sharding = NamedSharding(pair, sharding.spec)
        shape = sharding.shard_shape(abstract.shape)
        mine = [device for device in others if device.process_index == jax.process_index()]
        shards |= {device: zeros(device, shape, abstract.dtype) for device in mine}
    return jax.make_array_from_single_device_arrays(
        abstract.shape, sharding, list(shards.values()), dtype=abstract.dtype
    )


def to_load(engine: Engine, trained: frozenset[str]) -> dict[str, Tree]:
    """What this process needs of a checkpoint that has optimizer state of the keys `trained`; abstract."""
    nodes = [node for node, stage in engine.executor.stages.items() if stage.local]
    optimizer = {
        node: {key: layers for key, layers in abstract_optimizer(engine, node).items() if key in trained}
        for node in nodes
    }
    wanted = {
        "parameters": by_module({node: abstract_masters(engine, node) for node in nodes}),
        "optimizer": by_module(optimizer),
    }
    return {name: tree for name, tree in wanted.items() if tree}


def to_state(engine: Engine, loaded: dict[str, Tree]) -> State:
    """The state of what was loaded as `to_load` asked; optimizer state that was not starts fresh."""
    layouts = {node: layout for node, layout in engine.layouts.items() if engine.executor.stages[node].local}
    masters = by_stage(loaded["parameters"], layouts)
    optimizer = by_stage(loaded.get("optimizer", {}), layouts)
    fresh = {node for node in layouts if engine.trained[node] - set(optimizer[node])}
    state = engine.state_from({node: masters[node] for node in fresh})
    for node in layouts:
        if engine.trained[node]:
            state.optimizer[node] = state.optimizer.get(node, {}) | optimizer[node]
    return State(masters, state.optimizer, state.ok)
