"""LoRA adapters: no effect at the start, and merging into the weights."""

import dataclasses

import jax
import numpy as np
import pytest

from configs.architectures import DiTConfig, LoraConfig, ModelConfig
from configs.common.errors import UserError
from mmjax.models.layers.lora import join_adapters, merge_model_adapters
from mmjax.models.model import model_modules, run_model
from mmjax.models.structure.parameters import init_module_parameters, piece_definition
from tests.mmjax.training.engines import WITHOUT_GENERATOR, noisy_parameters
from tests.tiny_model import GENERATOR, tiny_batch

LORA = (LoraConfig("backbone", rank=3, scale=0.5), LoraConfig("vision", rank=2, targets=("query", "down")))
ADAPTED = dataclasses.replace(WITHOUT_GENERATOR, lora=LORA)


def losses(config: ModelConfig, tree) -> float:
    left = jax.jit(lambda tree, batch: run_model(model_modules(config), tree, batch))(tree, tiny_batch(config))
    return float(left["backbone"].loss)


def initial(config: ModelConfig):
    return {module.name: init_module_parameters(3, module) for module in model_modules(config)}


def test_initial_adapters_change_no_output():
    plain, adapted = initial(WITHOUT_GENERATOR), initial(ADAPTED)
    for module, pieces in plain.items():
        for piece, layers in pieces.items():
            jax.tree.map(np.testing.assert_array_equal, adapted[module][piece], layers)
    assert losses(ADAPTED, adapted) == losses(WITHOUT_GENERATOR, plain)


def test_merged_weights_give_the_outputs_of_the_adapters():
    tree = noisy_parameters(ADAPTED)
    merged = merge_model_adapters(tree, model_modules(ADAPTED), LORA)
    assert jax.tree.structure(merged) == jax.tree.structure(initial(WITHOUT_GENERATOR))
    adapted_loss, without = losses(ADAPTED, tree), losses(WITHOUT_GENERATOR, merged)
    np.testing.assert_allclose(without, adapted_loss, rtol=1e-5)
    bare = {module: {p: t for p, t in pieces.items() if not p.endswith("_lora")} for module, pieces in tree.items()}
    assert abs(losses(WITHOUT_GENERATOR, bare) - adapted_loss) > 1e-3 * abs(adapted_loss)


def test_only_targets_have_adapters():
    (vision, backbone) = model_modules(ADAPTED)
    vision_adapters = piece_definition(next(piece for piece in vision.pieces if piece.name == "blocks_lora"))
    adapter_paths = {
        path.removeprefix("['").replace("']['", "/").removesuffix("']") for path in paths(vision_adapters.shapes)
    }
    assert adapter_paths == {
        f"{at}/adapter/{name}" for at in ("attention/query", "mlp/down") for name in ("down", "up")
    }
    assert [piece.part for piece in backbone.pieces] == ["backbone", "backbone", "backbone_lora", "backbone"]
    assert [piece.name for piece in backbone.compute_pieces] == ["embed", "blocks", "head"]


def test_a_part_without_target_projections_is_refused():
    plain = dataclasses.replace(
        WITHOUT_GENERATOR, backbone=dataclasses.replace(WITHOUT_GENERATOR.backbone, gated=False)
    )
    with pytest.raises(UserError, match="ModelConfig.lora adapts gate of backbone, which has none of them"):
        model_modules(dataclasses.replace(plain, lora=(LoraConfig("backbone", targets=("gate",)),)))


def paths(tree) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def test_adapters_of_a_unet_adapt_its_attention():
    config = ModelConfig(
        WITHOUT_GENERATOR.encoders, WITHOUT_GENERATOR.backbone, (GENERATOR,), lora=(LoraConfig("generator", rank=2),)
    )
    adapters = next(piece for piece in model_modules(config)[-1].pieces if piece.adapter_of)
    assert adapters.part == "generator_lora" and adapters.adapter_of == "unet"
    shapes = piece_definition(adapters).shapes
    assert paths(shapes) and all("transformer" in path for path in paths(shapes))


def test_trees_are_joined_leaf_by_leaf():
    assert join_adapters({"a": {"b": 1}, "c": 2}, {"a": {"d": 3}}) == {"a": {"b": 1, "d": 3}, "c": 2}


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ((LoraConfig("speech"),), "ModelConfig.lora adapts 'speech', which is no module; choose from vision, backbone"),
        ((LoraConfig(), LoraConfig(rank=2)), "adapts backbone more than once"),
    ],
)
def test_adapters_of_unknown_modules_are_refused(lora, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(WITHOUT_GENERATOR, lora=lora)


def test_adapters_of_a_diffusion_transformer_are_refused():
    with pytest.raises(ValueError, match="lora adapts 'generator', a diffusion transformer, whose blocks have no"):
        ModelConfig(generators=(DiTConfig(),), lora=(LoraConfig("generator"),))


def test_unknown_targets_are_refused():
    with pytest.raises(ValueError, match="LoraConfig.targets names w1; choose from query, key"):
        LoraConfig(targets=("w1",))
