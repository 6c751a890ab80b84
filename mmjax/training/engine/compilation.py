"""Compiles the programs of an engine before it runs them: the programs of a training step, or of an evaluation.

The training loop calls it before its first step and `TrainingRun.evaluate` before the first evaluation.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from mmjax.training.engine.engine import Engine
from mmjax.training.engine.optimizers.layer_optimizer import LayerOptimizer
from mmjax.training.engine.optimizers.optimizer import abstract_optimizer_state
from mmjax.training.engine.placement import PlacedStage
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.pipeline import ExecutableStage
from sharding.runtime.stages.compilation import (
    CompilationCallback,
    ProgramCall,
    compile_programs,
    evaluation_calls,
    stage_calls,
)
from sharding.trees import Tree


def compile_step(engine: Engine, callback: CompilationCallback) -> None:
    """Compiles the programs of a training step, and the programs that make optimizer state, on this process's stages.

    Hops, and one addition for each tied parameter, compile when they are first called.

    Args:
        engine: The model on its plan.
        callback: Called with the number of compiled programs and the number of all: at the start, and after each.
    """
    reduction = engine.executor.global_reduction
    compiled = [ProgramCall(reduction.program, reduction.abstract_arguments())]
    for stage_id in engine.local_stages:
        stage = engine.executor.stages[stage_id]
        replica_calls = [
            stage_calls(pipeline_replica.by_capacity)
            for pipeline_replica in stage.pipeline_replicas
            if pipeline_replica.is_local
        ]
        compiled += [call for calls, *_ in replica_calls for call in calls]
        _, losses, gradients = replica_calls[0]
        compiled += _once_per_step(engine, stage_id, *stage.joined_shapes(losses, gradients))
    compile_programs([*compiled, *engine.executor.bundle_calls(compiled)], callback)


def compile_evaluation(engine: Engine, callback: CompilationCallback) -> None:
    """Compiles the programs of an evaluation on this process's stages; see `compile_step`."""
    calls = []
    for stage_id in engine.local_stages:
        stage = engine.executor.stages[stage_id]
        calls += [
            call
            for pipeline_replica in stage.pipeline_replicas
            if pipeline_replica.is_local
            for call in evaluation_calls(pipeline_replica.by_capacity)
        ]
        calls.append(ProgramCall(stage.gather, (engine.stages[stage_id].master_weights.abstract_weights(),)))
    compile_programs(calls, callback)


def _once_per_step(engine: Engine, stage_id: StageId, losses: Tree, gradients: Tree | None) -> list[ProgramCall]:
    """Returns the program calls of a stage that run once in each step, and the one that makes its optimizer state."""
    stage, placed = engine.executor.stages[stage_id], engine.stages[stage_id]
    hyperparameters = engine.executor.hyperparameters.by_stage.get(stage_id)
    calls = once_per_step_calls(placed, stage, engine.optimizer, hyperparameters, losses, gradients)
    if stage.reduce is not None:
        masters = placed.master_weights.abstract_weights()
        calls.append(ProgramCall(engine.optimizer_init[stage_id], (_trained(placed, masters),)))
    return calls


def once_per_step_calls(
    placed: PlacedStage,
    stage: ExecutableStage,
    optimizer: LayerOptimizer,
    hyperparameters: Any,
    losses: Tree,
    gradients: Tree | None,
) -> list[ProgramCall]:
    """Returns the program calls of a stage that run once in each step, whatever the number of microbatches.

    Args:
        placed: The stage.
        stage: Its programs.
        optimizer: The optimizer of a layer.
        hyperparameters: The last argument of its update; None where nothing trains.
        losses, gradients: Abstract losses and unreduced gradients of all pipeline replicas.
    """
    masters = placed.master_weights.abstract_weights()
    reduced = abstract_reduced_gradients(placed)
    calls = [ProgramCall(stage.gather, (masters,)), ProgramCall(stage.loss_and_norm, (reduced, losses))]
    if stage.reduce is not None:
        states = abstract_optimizer_state(optimizer, placed.master_weights, placed.trained_keys)
        decision = jax.ShapeDtypeStruct((1, 2), jnp.float32, sharding=NamedSharding(placed.mesh, P()))
        calls += [
            ProgramCall(stage.reduce, (gradients,)),
            ProgramCall(stage.update, (_trained(placed, masters), states, reduced, decision, hyperparameters)),
        ]
    return calls


def abstract_reduced_gradients(placed: PlacedStage) -> Tree:
    """Shapes, types and shardings of the reduced gradients of a stage, of the keys that train."""
    return _trained(placed, placed.master_weights.abstract_gradients())


def _trained(placed: PlacedStage, tree: Tree) -> Tree:
    return {key: tree[key] for key in sorted(placed.trained_keys)}
