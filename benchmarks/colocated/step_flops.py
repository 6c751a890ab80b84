"""FLOPs of all compiled forwards and backwards of a step, on all devices that run them."""

import collections
import dataclasses
from collections.abc import Sequence

from configs.architectures import ModelConfig
from data.packing.batch_spec import BatchSpec, global_batch_spec
from mmjax import cli
from mmjax.models.layers.reference_implementations import use_reference_implementations
from mmjax.training.config import TrainConfig
from mmjax.training.engine.engine import Engine
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime.stages.compilation import ProgramCall, stage_calls

DEVICES, MICROBATCHES = 8, 4

TP, ROWS = 2, 2
"""Tensor ranks of every unit, and rows of a microbatch."""


def small_configuration() -> tuple[TrainConfig, BatchSpec]:
    """The encoder and backbone of tiny.gin, and the arrays of its batches."""
    cli.parse_gin(("tiny.gin",))
    config = cli.configured(TrainConfig)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, generators=()),
        data=dataclasses.replace(config.data, rows=MICROBATCHES * ROWS, images=0),
    )
    return config, global_batch_spec(config.data, config.model).arrays


def colocated_plan(config: TrainConfig) -> Plan:
    """Two pipeline ranks of the backbone on all devices, and a pipeline replica of the encoder on each rank."""
    backbone, encoder = _units(config.model, range(DEVICES), range(DEVICES), pipeline_replicas=2)
    return Plan((encoder, backbone), MICROBATCHES, "colocated")


def separate_plan(config: TrainConfig) -> Plan:
    """The encoder on one half of the devices, and the backbone on the other."""
    half = DEVICES // 2
    backbone, encoder = _units(config.model, range(half), range(half, DEVICES))
    return Plan((encoder, backbone), MICROBATCHES, "interleaved")


def _units(
    model: ModelConfig, backbone_layers: Sequence[int], encoder_layers: Sequence[int], pipeline_replicas: int = 1
) -> tuple[UnitPlan, UnitPlan]:
    """Units whose virtual stages own one layer.

    The backbone is on two pipeline ranks, each pipeline replica of the encoder on one.
    """
    (encoder,) = model.encoders

    def unit(name: str, devices: Sequence[int], depth: int, pp: int, pipeline_replicas: int) -> UnitPlan:
        return UnitPlan(
            name,
            (name,),
            tuple(devices),
            layers=(1,) * depth,
            recompute=("none",) * depth,
            parallelism=Parallelism(
                dp=len(devices) // (TP * pp * pipeline_replicas),
                tp=TP,
                chunks=depth // pp,
                pipeline_replicas=pipeline_replicas,
            ),
        )

    backbone = unit(model.backbone.name, backbone_layers, model.backbone.depth, 2, 1)
    return backbone, unit(encoder.name, encoder_layers, encoder.depth, 1, pipeline_replicas)


def step_flops(config: TrainConfig, plan: Plan, batch: BatchSpec) -> float:
    """FLOPs of a step on all devices: what XLA counts in each compiled program, times how often it runs.

    A bundle counts as its two programs. What a step runs once, whatever its microbatches, is left out. Attention is
    dense: of a loop over blocks XLA counts one pass, however many there are.
    """
    with use_reference_implementations():
        return _counted_flops(config, plan, batch)


def _counted_flops(config: TrainConfig, plan: Plan, batch: BatchSpec) -> float:
    engine = Engine(config.model, plan, batch, config.engine_settings)
    runs = collections.Counter(
        (
            op.stage_id,
            engine.schedule.op_graph.stage_graph.pipeline_replica_of_microbatch(op.unit, op.microbatch),
            op.kind,
        )
        for op in engine.schedule.ops
        if op.kind in ("forward", "backward")
    )
    flops = 0.0
    for stage_id, stage in engine.executor.stages.items():
        for number, pipeline_replica in enumerate(stage.pipeline_replicas):
            calls = zip(("forward", "backward"), stage_calls(pipeline_replica.by_capacity).calls[-2:], strict=True)
            replica_flops = (runs[stage_id, number, kind] * _flops(call) for kind, call in calls)
            flops += pipeline_replica.largest.mesh.size * sum(replica_flops)
    return flops


def _flops(call: ProgramCall) -> float:
    """FLOPs of a compiled program on one device."""
    return float(call.program.lower(*call.arguments).compile().cost_analysis()["flops"])
