"""Short runs of the tiny model on plans of eight devices, for tests of checkpoints and of several processes."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import jax
import numpy as np

from configs.architectures import ModelConfig
from configs.optimizer import OptimizerConfig
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime.pipeline import TrainState
from sharding.trees import Tree
from tests.tiny_model import BACKBONE, TRANSFORMER_GENERATOR, VISION, tiny_batch
from tests.unit_plans import module_unit

# Two tensor ranks do not divide the vocabulary.
ODD = dataclasses.replace(BACKBONE, vocabulary=23, tie_embeddings=True)
MODEL = ModelConfig((VISION,), ODD, (TRANSFORMER_GENERATOR,))
SETTINGS = EngineSettings(OptimizerConfig(learning_rate=1e-2, warmup_steps=2, max_grad_norm=1.0), steps=20, seed=1)


OWN_ROWS = {"vision": (2, (12, 16)), "generator": (6, (1,))}
"""By unit, rows of its own and their capacities."""


def spread(devices: tuple[int, ...], rows: Mapping[str, tuple[int, tuple[int, ...]]]) -> Plan:
    """Vision, fully sharded, on two of the eight devices, the backbone in two stages of two, the generator on two."""
    units = (
        module_unit("vision", devices[:2], layers=(2,), dp=2, fsdp=2),
        module_unit("backbone", devices[2:6], layers=(1, 2), tp=2),
        module_unit("generator", devices[6:], dp=2),
    )
    with_rows = (
        dataclasses.replace(unit, phase_rows=rows[unit.name][0], capacities=rows[unit.name][1])
        if unit.name in rows
        else unit
        for unit in units
    )
    return Plan(tuple(with_rows), microbatches=2)


PLANS = {
    "spread": spread((0, 1, 2, 3, 4, 5, 6, 7), {}),
    # With four devices a process, everything is placed on the other one; the generator on both.
    "swapped": spread((4, 5, 6, 7, 0, 1, 2, 7), OWN_ROWS),
    "one": Plan(
        (
            UnitPlan("trunk", ("vision", "backbone"), (0,), layers=(5,)),
            module_unit("generator", (1,)),
        ),
        microbatches=1,
    ),
}


@functools.cache
def engine(plan: str, trainable: tuple[str, ...] = ("all",)) -> Engine:
    """The engine of a plan; kept, because compiling its programs takes most of a test's time."""
    settings = EngineSettings(SETTINGS.optimizer, SETTINGS.steps, SETTINGS.seed, trainable)
    return Engine(MODEL, PLANS[plan], tiny_batch(MODEL), settings)


def batch(step: int) -> dict[str, dict[str, np.ndarray]]:
    """A batch; in that of step 3 the second microbatch has no image, in that of step 4 the first has none to draw."""
    arrays = tiny_batch(MODEL, seed=step)
    if step == 3:
        arrays["vision"]["segments"][4:] = 0
        arrays["backbone"]["vision_index"][4:] = -1
    if step == 4:
        arrays["generator"]["weights"][:4] = 0
    return arrays


def run(engine: Engine, state: TrainState, steps: Iterable[int]) -> tuple[TrainState, np.ndarray]:
    """Trains from a state, which is donated; returns the new state and the losses [steps, 2] of backbone, generator."""
    losses = []
    for step in steps:
        state, summary = engine.executor.step(state, engine.place_batch(batch(step), step))
        losses.append(summary.losses)
    names = [name for _, name in engine.executor.global_reduction.loss_order]
    columns = [names.index(module) for module in ("backbone", "generator")]
    return state, np.array([np.asarray(step_losses)[columns] for step_losses in losses])


LocalArrays = dict[str, tuple[tuple[int, ...], list[tuple[tuple[slice, ...], np.ndarray]]]]
"""By name of a parameter or moment: its shape, and the (index, values) that a process holds."""


def local_arrays(state: TrainState) -> LocalArrays:
    """Copies of all of a state's parameters and moments that this process holds."""
    leaves = jax.tree_util.tree_leaves_with_path(
        {"masters": _flat(state.master_weights), "optimizer": _flat(state.optimizer_state)}
    )
    return {
        jax.tree_util.keystr(path): (
            array.shape,
            [(shard.index, np.array(shard.data, copy=True)) for shard in array.addressable_shards],
        )
        for path, array in leaves
    }


def assembled(*processes: LocalArrays) -> dict[str, np.ndarray]:
    """Whole arrays from what processes hold; fails if copies of a value differ, or a value is missing."""
    arrays: dict[str, np.ndarray] = {}
    for name in sorted(set().union(*processes)):
        parts = [process[name] for process in processes if name in process]
        array, seen = np.zeros(parts[0][0], parts[0][1][0][1].dtype), np.zeros(parts[0][0], bool)
        for index, piece in (entry for _, pieces in parts for entry in pieces):
            np.testing.assert_array_equal(np.where(seen[index], array[index], piece), piece, err_msg=name)
            array[index], seen[index] = piece, True
        assert seen.all(), name
        arrays[name] = array
    return arrays


def assert_same(some: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> None:
    """Asserts that both have the same names and the same bits."""
    assert some.keys() == others.keys()
    for name, array in some.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


def _flat(trees: dict[tuple[str, int], Tree]) -> Tree:
    """Layers by name alone, whatever their stage."""
    return {
        f"{key}/{layer}": tree
        for stage_trees in trees.values()
        for key, layers in stage_trees.items()
        for layer, tree in layers.items()
    }
