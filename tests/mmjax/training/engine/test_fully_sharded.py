"""Fully sharded units against plain differentiation on one device, and what each device holds of them."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import ExpertsConfig, LoraConfig, ModelConfig
from data.packing.dealt_phases import plan_phase_rows
from mmjax.training.engine.engine import Engine
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from tests.mmjax.training.engines import (
    SETTINGS,
    TIED_EMBEDDINGS,
    WITHOUT_GENERATOR,
    assert_step_of_one_device,
    gradients_and_summary,
    largest_error,
    noisy_state,
    shared_engine,
)
from tests.tiers import first_in_default
from tests.tiny_model import AUDIO, BACKBONE, VISION, tiny_batch
from tests.unit_plans import flat_unit

EXPERTS = ModelConfig((), dataclasses.replace(BACKBONE, experts=ExpertsConfig(count=4, top_k=2, ffn=16)), ())
TWO_ENCODERS = ModelConfig((VISION, AUDIO), dataclasses.replace(BACKBONE, depth=3), ())
ADAPTERS = dataclasses.replace(WITHOUT_GENERATOR, lora=(LoraConfig("backbone", rank=2),))


def unit(name="all", modules=("vision", "backbone"), start=0, dp=4, fsdp=4, layers=(5,), tp=1, **fields):
    devices = range(start, start + dp * tp * len(layers))
    recompute = fields.pop("recompute", ("none",) * len(layers))
    return flat_unit(
        name,
        modules,
        tuple(devices),
        layers=layers,
        recompute=recompute,
        **fields,
        parallelism=Parallelism(dp=dp, tp=tp, fsdp=fsdp),
    )


def backbone(**fields):
    return unit("backbone", ("backbone",), **{"layers": (3,), **fields})


def _name(units: tuple) -> str:
    return "-".join(f"fsdp{parallelism.fsdp}of{parallelism.dp}" for parallelism in (unit.parallelism for unit in units))


@pytest.mark.parametrize(
    ("units", "config"),
    first_in_default(
        [
            ((unit(recompute=("2 full, 1 none, 2 selective",)),), WITHOUT_GENERATOR),
            ((unit(dp=4, fsdp=2, recompute=("offload",)),), TIED_EMBEDDINGS),
            ((unit(dp=2, fsdp=2, tp=2, layers=(3, 2), collectives="ring"),), TIED_EMBEDDINGS),
            ((unit(dp=2, fsdp=2, tp=2, module_tp=(1, 2), collectives="ring"),), WITHOUT_GENERATOR),
            ((backbone(ep=2, fsdp=2),), EXPERTS),
            ((backbone(ep=2, recompute=("selective",)),), EXPERTS),
            (
                (
                    unit("vision", ("vision",), dp=3, fsdp=3, layers=(2,)),
                    backbone(start=3, dp=4, fsdp=2, recompute=("full",)),
                ),
                WITHOUT_GENERATOR,
            ),
        ]
    ),
    ids=lambda value: None if isinstance(value, ModelConfig) else _name(value),
)
def test_losses_and_gradients_are_those_of_one_device(units, config):
    rows = 2 * math.lcm(*(unit.replicas_of(name) for unit in units for name in unit.modules))
    engine = Engine(config, Plan(units, microbatches=2), tiny_batch(config, rows), SETTINGS)
    assert_step_of_one_device(engine, rows)


@pytest.mark.layouts
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_adapters_of_frozen_weights_get_the_gradients_of_one_device(recompute):
    settings = dataclasses.replace(SETTINGS, trainable=("backbone_lora", "vision_projector"))
    plan = Plan((unit(recompute=(recompute,)),), microbatches=2)
    assert_step_of_one_device(shared_engine(plan, ADAPTERS, settings))


# As the policy `fsdp` plans two encoders; the group of the backbone has the devices of a group of each encoder.
EVERY_PHASE = Plan(
    (
        unit("vision", ("vision",), dp=4, fsdp=2, layers=(2,), phase_rows=4, capacities=(4, 8)),
        unit("audio", ("audio",), dp=4, fsdp=2, layers=(2,), phase_rows=4, capacities=(8,)),
        backbone(dp=4, fsdp=2, recompute=("1 full, 2 none",)),
    ),
    microbatches=2,
)


def only(batch, *, images=True, clips=True, samples=None):
    """The batch without images or without clips, or of its first samples alone."""
    for name, is_kept in (("vision", images), ("audio", clips)):
        kept = samples if is_kept else 0
        batch[name]["segments"][kept:] = 0
        batch["backbone"][f"{name}_index"][kept:] = -1
    if samples is not None:
        batch["backbone"]["segments"][samples:] = 0
        batch["backbone"]["weights"][samples:] = 0
    return batch


@pytest.mark.layouts
@pytest.mark.parametrize(
    "kept", [{"images": False, "clips": False}, {"clips": False}, {"images": False}, {"samples": 1}], ids=str
)
def test_batches_that_lack_modalities_or_rows(kept):
    engine = shared_engine(EVERY_PHASE, TWO_ENCODERS)
    assert_step_of_one_device(engine, batch=only(tiny_batch(TWO_ENCODERS), **kept))


@pytest.mark.layouts
def test_rows_placed_by_nodes_change_no_gradient():
    engine, batch = shared_engine(EVERY_PHASE, TWO_ENCODERS), tiny_batch(TWO_ENCODERS)
    near = plan_phase_rows(EVERY_PHASE, TWO_ENCODERS, batch, devices_per_node=1).deal(batch)
    assert (near["vision items"]["items"] != engine.dealt_phases.deal(batch)["vision items"]["items"]).any()
    (actual, _), (expected, _) = (gradients_and_summary(engine, host_batch) for host_batch in (near, batch))
    assert largest_error(actual, jax.tree.map(np.asarray, expected))[0] < 1e-5


@pytest.mark.layouts
@pytest.mark.parametrize(("dp", "fsdp", "share"), [(4, 4, 4), (4, 2, 2)])
def test_a_device_holds_a_share_of_weights_gradients_and_masters(dp, fsdp, share):
    engine = shared_engine(Plan((unit(dp=dp, fsdp=fsdp),)), WITHOUT_GENERATOR)
    state = noisy_state(engine)
    stage = engine.stages["all", 0]
    weights = engine.executor.compute_weights(state)["all", 0]["backbone/blocks"]["mlp"]["up"]["kernel"]
    (held,) = {shard.data.size for shard in weights.addressable_shards}
    assert held * share == weights.size
    programs = engine.executor.stages["all", 0].programs
    gradients = programs.zero_gradients()["backbone/blocks"]["mlp"]["up"]["kernel"]
    (held,) = {shard.data.size for shard in gradients.addressable_shards}
    assert held * share == weights.size  # of the one copy in each group
    for key, layers in stage.master_weights.shardings.items():
        for layer, shardings in layers.items():
            masters = state.master_weights["all", 0][key][layer]
            for leaf, sharding in zip(jax.tree.leaves(masters), jax.tree.leaves(shardings), strict=True):
                if leaf.ndim > 1 and any(size % dp == 0 for size in leaf.shape):  # vectors may be the tensor ranks'
                    (held,) = {shard.data.size for shard in leaf.addressable_shards}
                    assert held * dp == leaf.size, (key, layer, sharding)


@pytest.mark.layouts
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_no_gathered_weight_is_kept_for_the_backward(recompute):
    sharded, whole = (
        shared_engine(Plan((unit(fsdp=fsdp, recompute=(recompute,)),)), WITHOUT_GENERATOR) for fsdp in (4, 1)
    )
    assert residual_bytes(sharded) == residual_bytes(whole)


def residual_bytes(engine):
    programs = engine.executor.stages["all", 0].programs
    losses = {name: jax.ShapeDtypeStruct((4,), jnp.float32) for name in programs.loss_names}
    saved = jax.eval_shape(programs.forward, *programs.operand_shapes, losses).residuals
    return sum(leaf.size * leaf.dtype.itemsize for leaf in saved)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"fsdp": 3}, "fsdp 3 must divide dp 4"),
        ({"fsdp": 2, "ep": 4}, "multiple of ep 4"),
        ({"fsdp": 0}, "fsdp is 0"),
    ],
)
def test_groups_that_do_not_divide_are_refused(fields, named):
    with pytest.raises(PlanError, match=named):
        backbone(**fields)
