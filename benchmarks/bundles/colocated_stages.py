"""The programs of a stage of Llama3-70B and of a slice of ViT-22B that share eight H100s; nothing is placed on them."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.h100_schedule.compilation import DEVICES, tensor_mesh
from benchmarks.memory.cases import empty_batch_spec
from configs.architectures import ModelConfig
from configs.optimizer import OptimizerConfig
from mmjax import cli
from mmjax.training.dry_run.abstract_stages import abstract_step
from mmjax.training.dry_run.compiled_program import attention_of_gpus
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime.stages.compilation import ProgramCall
from sharding.specs.modules import module_graph

TOKENS, PATCHES = 8192, 4112
"""Backbone tokens and patches of a row: 16 images of ViT-22B, 257 patches each."""

BACKBONE_LAYERS, ENCODER_LAYERS = 2, 4
"""Layers of a virtual stage of the backbone, and of a slice of the encoder."""

Unit = Literal["vision", "backbone"]
Kind = Literal["gather", "forward", "backward", "reduce"]


def colocated_model() -> ModelConfig:
    """The configuration of ViT-22B with Llama3-70B."""
    cli.parse_gin(("models/internvit_6b_llama3_70b.gin",))
    backbone = cli.configured(ModelConfig).backbone
    cli.parse_gin(("models/vit_22b_llama_70b.gin",))
    return dataclasses.replace(cli.configured(ModelConfig), backbone=backbone)


def colocated_plan(config: ModelConfig, tp: int) -> Plan:
    """Every stage of both modules on the same devices, tp ranks of each replica; the others are replicas."""

    def unit(name: str, depth: int, layers: int) -> UnitPlan:
        stages = depth // layers
        return UnitPlan(
            name,
            (name,),
            tuple(range(DEVICES)),
            layers=(layers,) * stages,
            recompute=("selective",) * stages,
            parallelism=Parallelism(dp=DEVICES // tp, tp=tp, chunks=stages, collectives="sequence_parallel"),
        )

    (encoder,) = config.encoders
    units = unit("vision", encoder.depth, ENCODER_LAYERS), unit("backbone", config.backbone.depth, BACKBONE_LAYERS)
    return Plan(units, schedule="interleaved")


@functools.cache
def op_calls(tp: int) -> Mapping[tuple[Unit, Kind], ProgramCall]:
    """The programs of a stage in the middle of either module, on one row a replica, and what they are called with.

    Args:
        tp: Tensor ranks of both modules.
    """
    config = colocated_model()
    plan, graph = colocated_plan(config, tp), module_graph(config)
    resolved = ResolvedPlan(plan, graph, trained_parts(graph, ("all",)))
    calls: dict[tuple[Unit, Kind], ProgramCall] = {}
    with attention_of_gpus():
        batch_spec = empty_batch_spec(config, DEVICES // tp, TOKENS, {"patches": PATCHES})
        devices = list(tensor_mesh(DEVICES).devices.flat)
        step = abstract_step(config, resolved, batch_spec, devices, DEVICES, OptimizerConfig())
        for unit in ("vision", "backbone"):
            stage = step.stages[unit, 1]
            calls[unit, "forward"], calls[unit, "backward"] = stage.microbatch_calls()
            by_program = {call.program: call for call in stage.step_calls}
            calls[unit, "gather"] = by_program[stage.executable.gather]
            calls[unit, "reduce"] = by_program[stage.executable.reduce]
    return calls


def compile_call(call: ProgramCall, options: Mapping[str, Any]) -> Any:
    """The compiled program of a call, with these compiler options besides its own."""
    with attention_of_gpus():
        return call.program.lower(*call.arguments).compile(compiler_options=dict(options))
