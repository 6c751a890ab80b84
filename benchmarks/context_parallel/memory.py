"""Bytes of activations of context-parallel ranks, of layers of Llama3-8B in the middle of a pipeline, as compiled."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from benchmarks.context_parallel.ring_overlap import ring_permutes
from benchmarks.memory.cases import MemoryCase, empty_batch_spec
from benchmarks.memory.compiled_stages import StageBytes, abstract_stage_programs, compiled_bytes
from configs.architectures import ModelConfig
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime.stages.programs import StagePrograms

TOKENS, SHORT, SIZES, STAGES, LAYERS = 32768, 512, (2, 4, 8), 3, 4
OVERLAP_RANKS = 4
GOAL = 1.1


def measure(h100: bool) -> Iterator[dict[str, Any]]:
    """Yields the bytes that a microbatch saves and that a pass needs besides, times cp over the bytes with cp 1.

    Some of a pass's bytes do not depend on rows, such as gradients of weights before they are added to the gradients of
    earlier microbatches. They are left out: the bytes of a short row are subtracted.
    """
    config, devices = _model(), _devices(h100)
    where = "H100" if h100 else "CPU"
    fixed = compiled(config, 1, SHORT, devices).workspace
    whole = _activations(compiled(config, 1, TOKENS, devices), fixed)
    for cp in SIZES:
        shard = _activations(compiled(config, cp, TOKENS, devices), fixed)
        for kind, size in shard.items():
            value = cp * size / whole[kind]
            yield {
                "name": f"{kind}, cp {cp}: bytes of a rank times cp over those of a whole row",
                "value": value,
                "goal": GOAL,
                "met": value <= GOAL,
                "note": f"{where}: {size / 1e9:.3f} of {whole[kind] / 1e9:.3f} GB",
            }


def measure_overlap() -> Iterator[dict[str, Any]]:
    """The ring's permutes on H100s that are in flight while blocks of attention are computed."""
    programs = stage_programs(_model(), OVERLAP_RANKS, TOKENS, _devices(h100=True))
    for name, (beside, count) in ring_permutes(programs, "blocked").items():
        yield {
            "name": f"{name}, cp {OVERLAP_RANKS}: share of permutes in flight beside attention",
            "value": beside / count,
            "goal": None,
            "met": None,
            "note": f"H100: {beside} of {count} in the program",
        }


def _model() -> ModelConfig:
    """Llama3-8B with few layers."""
    case = MemoryCase(name="Llama3-8B", gin_file="models/internvit_6b_llama3_8b.gin", module="backbone", stages=1)
    config = case.model()
    backbone = dataclasses.replace(config.backbone, depth=STAGES * LAYERS)
    return dataclasses.replace(config, backbone=backbone, generators=())


def _activations(stage_bytes: StageBytes, fixed: float) -> dict[str, float]:
    return {"saved": stage_bytes.saved, "workspace": stage_bytes.workspace - fixed}


def compiled(config: ModelConfig, cp: int, tokens: int, devices: list[Any]) -> StageBytes:
    """Bytes of the stage in the middle, of which each rank has a share of one row."""
    return compiled_bytes(stage_programs(config, cp, tokens, devices), "blocked", cp)


def stage_programs(config: ModelConfig, cp: int, tokens: int, devices: list[Any]) -> StagePrograms:
    """The programs of the stage in the middle."""
    unit = UnitPlan(
        "backbone",
        ("backbone",),
        tuple(range(cp)),
        layers=(LAYERS,) * STAGES,
        recompute=("selective",) * STAGES,
        parallelism=Parallelism(cp=cp, chunks=STAGES),
    )
    plan = Plan((unit,), schedule="interleaved")
    batch_spec = empty_batch_spec(config, 1, tokens, {})
    with jax.numpy_dtype_promotion("standard"):
        return abstract_stage_programs(config, plan, batch_spec, devices, "blocked")["backbone", 1]


def _devices(h100: bool) -> list[Any]:
    if not h100:
        return list(jax.devices())
    from benchmarks.h100_schedule.compilation import DEVICES, tensor_mesh

    return list(tensor_mesh(DEVICES).devices.flat)
