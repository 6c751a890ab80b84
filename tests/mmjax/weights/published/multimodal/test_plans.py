"""Whole models on plans with pipeline stages and tensor parallelism: read into them, and written bit for bit."""

import json

import jax
import numpy as np
import pytest

from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.weights.export import export_checkpoint, export_target_like
from mmjax.weights.folder import write_checkpoint_folder
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published_checkpoint import checkpoint_matches, open_checkpoint
from mmjax.weights.registry import read_architecture
from mmjax.weights.safetensors_file import TensorHeader
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.mmjax.weights.published.encoders.vision_parity import picture
from tests.mmjax.weights.published.multimodal.mixed_prompts import MixedPrompt, one_row
from tests.mmjax.weights.published.parity import same_tensors
from tests.tiers import first_in_default
from tests.unit_plans import flat_unit

IMAGE, SOUND = 39, 36
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
TEXT = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "rope_parameters": ROPE,
}
VISION = {"depth": 3, "num_heads": 2, "patch_size": 4, "hidden_size": 24, "intermediate_size": 36}
CONFIGS = {
    "qwen3_vl_moe": {
        "model_type": "qwen3_vl_moe",
        "vision_config": {**VISION, "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2]},
        "text_config": {**TEXT, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
    },
    "qwen2_5_omni": {
        "model_type": "qwen2_5_omni",
        "thinker_config": {
            "vision_config": {**VISION, "window_size": 8, "fullatt_block_indexes": [1]},
            "audio_config": {
                "num_mel_bins": 16,
                "d_model": 24,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 36,
                "n_window": 6,
            },
            "text_config": TEXT,
        },
    },
}
PROMPT = MixedPrompt(
    tokens=[1, *[IMAGE] * 6, 5, *[SOUND] * 3, 6, 7],
    clips=[np.stack([picture(0, 16, 24)])],
    sounds=[np.random.default_rng(0).normal(size=(12, 16)).astype(np.float32)],
)


def random_folder(values, path):
    """A folder of random values under the names and shapes of a config.json."""
    architecture, config = read_architecture(values)
    random = np.random.default_rng(0)
    arrays = {
        name: random.normal(size=shape).astype(np.float32)
        for match in checkpoint_matches(architecture, config, config)
        for name, shape in zip(match.tensor_names, match.tensor_shapes, strict=True)
    }
    headers = {name: TensorHeader("F32", array.shape) for name, array in arrays.items()}
    write_checkpoint_folder(path, "model", headers, iter(arrays.items()), 10**9, {"config.json": json.dumps(values)})
    return path


@pytest.mark.parametrize("kind", first_in_default(CONFIGS))
def test_what_a_plan_holds_is_written_bit_for_bit(kind, tmp_path):
    folder = random_folder(CONFIGS[kind], tmp_path / "saved")
    model = open_checkpoint(folder).config
    names = [encoder.name for encoder in model.encoders]
    depths = [encoder.depth for encoder in model.encoders]
    units = [UnitPlan(name, (name,), (n,), layers=(depths[n],)) for n, name in enumerate(names)]
    half = (model.backbone.depth - model.early_blocks) // 2  # the early blocks are in the first stage
    stages = {"layers": (half, half), "recompute": ("none", "none")}
    backbone = flat_unit("backbone", ("backbone",), (4, 5, 6, 7), **stages, parallelism=Parallelism(tp=2))
    placeholders = {"vision": ("patches", IMAGE), "audio": ("frames", SOUND)}
    batch = one_row(model, PROMPT, dict(placeholders[name] for name in names))
    engine = Engine(model, Plan((*units, backbone)), batch, EngineSettings(steps=1))
    state = engine.initial_state(parameter_initializer(model, 0, (("model", str(folder)),)))
    held = {
        (path, layer): tree
        for trees in state.master_weights.values()
        for path, layers in trees.items()
        for layer, tree in layers.items()
    }
    target = export_target_like(open_checkpoint(folder), model, "model")

    def read_layer(module, piece, layer):
        return jax.tree.map(np.asarray, held[f"{module}/{piece}", layer])

    export_checkpoint(target, read_layer, tmp_path / "again", 10**9)
    assert same_tensors(folder, tmp_path / "again")
