"""Compiles the programs of an engine before it runs them: the programs of a training step, or of an evaluation.

The training loop calls it before its first step and `TrainingRun.evaluate` before the first evaluation.
"""

from mmjax.training.engine.engine import Engine
from sharding.plans.resolved.stage_graph import StageId
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
    """Returns the program calls of a stage that run once in each step, whatever the number of microbatches."""
    stage, masters = engine.executor.stages[stage_id], engine.stages[stage_id].master_weights.abstract_weights()
    keys, reduced = sorted(engine.stages[stage_id].trained_keys), engine.stages[stage_id].master_weights
    trained, gradients_of = ({key: tree[key] for key in keys} for tree in (masters, reduced.abstract_gradients()))
    calls = [ProgramCall(stage.gather, (masters,)), ProgramCall(stage.loss_and_norm, (gradients_of, losses))]
    if stage.reduce is not None:
        init = engine.optimizer_init[stage_id]
        states = engine.abstract_optimizer_state(stage_id)
        decision = engine.executor.global_reduction.abstract_decision(stage_id)
        hyperparameters = engine.executor.hyperparameters.by_stage[stage_id]
        calls += [
            ProgramCall(stage.reduce, (gradients,)),
            ProgramCall(stage.update, (trained, states, gradients_of, decision, hyperparameters)),
            ProgramCall(init, (trained,)),
        ]
    return calls
