"""The programs of a stage of Llama3-70B and of a slice of ViT-22B that share eight H100s; nothing is placed on them."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax

from benchmarks.h100_schedule.compilation import DEVICES, tensor_mesh
from configs.architectures import ModelConfig
from data.data_config import RowCapacity
from data.packing.batch_spec import BatchSpec
from data.packing.global_batch import build_global_batch, capacity_for_model
from data.packing.rows.packed_rows import pack_samples
from data.samples.sample_format import SampleFormat
from mmjax import cli
from mmjax.models.model import model_modules
from mmjax.training.engine.build import build_stage_programs
from mmjax.training.engine.channels import find_channels
from mmjax.training.engine.placement import place_stages
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime.stages.compilation import ProgramCall, stage_calls
from sharding.schedules.named.build import training_op_graph
from sharding.specs.modules import module_graph

ATTENTION = "cudnn"
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


def _batch_spec(config: ModelConfig, rows: int) -> BatchSpec:
    lengths = {"patches": PATCHES}
    form = SampleFormat.for_model(config, lengths)
    row = RowCapacity(tokens=TOKENS, lengths=lengths, images=0, samples=8)
    return build_global_batch(pack_samples([], rows, capacity_for_model(row, form), form), config, form).arrays


@functools.cache
def op_calls(tp: int) -> Mapping[tuple[Unit, Kind], ProgramCall]:
    """The programs of a stage in the middle of either module, on one row a replica, and what they are called with.

    Args:
        tp: Tensor ranks of both modules.
    """
    config = colocated_model()
    plan, graph = colocated_plan(config, tp), module_graph(config)
    parts = trained_parts(graph, ("all",))
    stages = place_stages(
        config, model_modules(config), ResolvedPlan(plan, graph, parts), list(tensor_mesh(DEVICES).devices.flat)
    )
    calls: dict[tuple[Unit, Kind], ProgramCall] = {}
    # jax's own attention adds a float32 mask to bfloat16.
    with use_attention_implementation(ATTENTION), jax.numpy_dtype_promotion("standard"):
        spec = _batch_spec(config, DEVICES // tp)
        programs = build_stage_programs(
            stages, find_channels(stages), spec, training_op_graph(ResolvedPlan(plan, graph), frozenset(stages)), {}, {}
        )
        for unit in ("vision", "backbone"):
            stage = stages[unit, 1]
            stage_programs, _, gradients = stage_calls(programs[unit, 1][0].by_capacity)
            *_, calls[unit, "forward"], calls[unit, "backward"] = stage_programs
            masters = stage.master_weights
            calls[unit, "gather"] = ProgramCall(masters.gather, (masters.abstract_weights(),))
            calls[unit, "reduce"] = ProgramCall(masters.make_reduce(stage.trained_keys), (gradients,))
    return calls


def compile_call(call: ProgramCall, options: Mapping[str, Any]) -> Any:
    """The compiled program of a call, with these compiler options besides its own."""
    with use_attention_implementation(ATTENTION), jax.numpy_dtype_promotion("standard"):
        return call.program.lower(*call.arguments).compile(compiler_options=dict(options))
