"""Specs of blocks with experts equal the Flax modules: parameters, parameters per rank and FLOPs."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import BackboneConfig, LoraConfig, ModelConfig
from configs.modules.experts import ExpertsConfig, RouterConfig
from mmjax.models.layers.reference_implementations import use_reference_implementations
from mmjax.models.model import model_modules, run_module
from mmjax.models.structure.parameters import abstract_module_parameters, piece_definition
from mmjax.training.metrics.flops import count_flops
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_checks import check_unit
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph

TOKENS = 20
EXPERTS = {
    "Mixtral": ExpertsConfig(count=4, top_k=2, ffn=24),
    "Qwen2-MoE": ExpertsConfig(count=6, top_k=3, ffn=16, shared_ffn=40, router=RouterConfig(normalise=False)),
    "DeepSeek-V3": ExpertsConfig(
        count=8,
        top_k=3,
        ffn=16,
        router=RouterConfig(scores="sigmoid", selection_bias=True, groups=4, top_groups=2, weight_factor=2.5),
        shared_ffn=40,
        shared_gate=False,
        dense_layers=1,
    ),
    "Llama 4 Maverick": ExpertsConfig(
        count=4,
        top_k=1,
        ffn=24,
        router=RouterConfig(scores="sigmoid", normalise=False, weighted="inputs"),
        shared_ffn=24,
        shared_gate=False,
        interval=2,
    ),
    "gpt-oss": ExpertsConfig(
        count=4, top_k=2, ffn=24, router=RouterConfig(bias=True), biases=True, limit=7.0, up_offset=1.0
    ),
}


def model(name, **others):
    return ModelConfig(
        (), BackboneConfig(vocabulary=48, width=32, depth=3, ffn=56, experts=EXPERTS[name], **others), ()
    )


@pytest.mark.parametrize("ep", [1, 2])
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", EXPERTS)
def test_parameters_per_rank_match_the_flax_module(name, tp, ep):
    (module,) = model_modules(model(name, biases=("query", "key", "value")))
    held = 0
    for piece in module.pieces:
        definition = piece_definition(piece)
        splits = jax.tree.leaves(definition.splits, is_leaf=lambda split: isinstance(split, tuple))
        for shape, split in zip(jax.tree.leaves(definition.shapes), splits, strict=True):
            ranks = (tp if "tensor" in split else 1) * (ep if "expert" in split else 1)
            held += (piece.layers or 1) * math.prod(shape.shape) // ranks
    spec = module_graph(model(name, biases=("query", "key", "value")))["backbone"]
    assert held == sum(
        (layer.parameters_per_rank(tp) + layer.expert_parameters_per_rank(tp, ep)) * count
        for layer, count in spec.all_layers
    )


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_have_no_adapters(name):
    adapted = dataclasses.replace(model(name), lora=(LoraConfig("backbone", rank=4),))
    (module,) = model_modules(adapted)
    held = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_module_parameters(module)))
    assert held == module_graph(adapted)["backbone"].parameter_count
    assert held > module_graph(model(name))["backbone"].parameter_count


@pytest.mark.parametrize("name", EXPERTS)
def test_flops_of_forward_and_gradients_match_the_flax_module(name):
    (module,) = model_modules(model(name))
    batch = dict.fromkeys(("segments", "tokens", "branches", "targets", "positions"), jnp.int32)
    batch |= dict.fromkeys(("weights", "balancing_weights"), jnp.float32)
    batch = {field: jax.ShapeDtypeStruct((1, TOKENS), dtype) for field, dtype in batch.items()}
    parameters = abstract_module_parameters(module)
    spec = module_graph(model(name))["backbone"]
    loads = np.array((TOKENS, 2 * TOKENS**2, 1, 0), float)  # the mask of the plain form hides half of what it computes
    forward = functools.partial(run_module, module)
    with use_reference_implementations():
        counted = count_flops(forward, parameters, {}, batch)
    assert spec.forward_flops(loads) == counted

    def loss(parameters, batch):
        left = forward(parameters, {}, batch)
        return left.loss + left.auxiliary_losses["balance"]

    with use_reference_implementations():
        both = count_flops(jax.grad(loss), parameters, batch)
    assert both == pytest.approx(3 * spec.forward_flops(loads), rel=0.05)  # attention and the table have a little less


def test_tensor_and_expert_parallelism_divide_every_expert_size():
    spec = module_graph(model("Qwen2-MoE"))["backbone"]
    assert ("experts.ffn", 16) in spec.tensor_splits and ("experts.shared_ffn", 40) in spec.tensor_splits
    assert spec.expert_count == 6 and not any(dimension == "ffn" for dimension, _ in spec.tensor_splits)
    graph = module_graph(model("Qwen2-MoE"))
    check_unit(
        UnitPlan("mind", ("backbone",), tuple(range(4)), layers=(3,), parallelism=Parallelism(dp=4, ep=2)), graph, 4
    )
    with pytest.raises(PlanError, match="ep 4 does not divide the 6 experts"):
        check_unit(
            UnitPlan("mind", ("backbone",), tuple(range(4)), layers=(3,), parallelism=Parallelism(dp=4, ep=4)), graph, 4
        )


def test_experts_with_options_of_the_feed_forward_layer_are_refused():
    for options in ({"gated": False}, {"biases": ("mlp",)}, {"inner_norms": ("mlp",)}):
        with pytest.raises(ValueError, match="experts are gated and have no inner norms and biases of mlp"):
            model("Mixtral", **options)
