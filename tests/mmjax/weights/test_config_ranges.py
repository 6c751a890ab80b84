"""Hostile and broken config.json: every key that is read has a type and a range, and an error names it."""

import ast
import json
import pathlib

import pytest

from configs.common.errors import UserError
from mmjax.weights import published
from mmjax.weights.published.config_ranges import RANGES
from mmjax.weights.published_checkpoint import open_checkpoint
from mmjax.weights.registry import read_architecture
from tests.mmjax.weights.published.small_checkpoints import DECODERS, EXPERTS, TEXT, TOWERS, WHOLE

LLAMA = {"model_type": "llama", **TEXT, "rope_theta": 5e5, "rms_norm_eps": 1e-5}
DEEPSEEK = {
    **{"model_type": "deepseek_v3", **TEXT, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8},
    **{"qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4, "n_routed_experts": 4, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 12, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
    **{"norm_topk_prob": True, "routed_scaling_factor": 2.5, "aux_loss_alpha": 1e-3, "output_router_logits": False},
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0},
}
UNET = {
    **{"_class_name": "UNet2DConditionModel", "sample_size": 8, "in_channels": 4, "out_channels": 4},
    **{"block_out_channels": [32, 64], "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"]},
    **{"up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "layers_per_block": 1, "norm_num_groups": 8},
    **{"cross_attention_dim": 16, "attention_head_dim": 4},
}
FAMILIES = {
    "llama": LLAMA,
    "deepseek_v3": DEEPSEEK,
    "unet": UNET,
    "qwen3_moe": {"model_type": "qwen3_moe", **DECODERS["qwen3_moe"][1]},
    "gemma3": {"model_type": "gemma3", **WHOLE["gemma3"][1]},
    "qwen3_vl": {"model_type": "qwen3_vl", **WHOLE["qwen3_vl"][1]},
    "qwen2_audio": {"model_type": "qwen2_audio", **WHOLE["qwen2_audio"][1]},
    "internvl": {"model_type": "internvl", **WHOLE["internvl"][1]},
    "dinov2": {"model_type": "dinov2", **TOWERS["dinov2"][1]},
}
READ = {
    *("values", "own", "text", "tower", "arguments", "parameters", "rotary", "rope", "pretrained", "scaling", "by_type")
}
"""Names that the contents of a config.json have where they are read."""

ENTRIES = {
    *("Key", "EqualKeys", "softcap", "activation_key", "block_count", "layer_scale", "patches", "square_table"),
    *("query_key_value_bias", "pixel_shuffle", "feature_layer"),
}
"""Names of the entries of tables whose first argument is a key that becomes a field, or several."""

HOSTILE = (None, True, -1, 0, 0.5, 10**9, "x", [], ["x"], {}, {"type": ["x"]})


def variants(values: dict):
    """The values with one of them replaced by each hostile one, at any depth."""
    for key, value in values.items():
        for other in HOSTILE:
            yield {**values, key: other}
        if isinstance(value, dict):
            yield from ({**values, key: inner} for inner in variants(value))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_hostile_value_is_read_or_refused_in_a_line(family):
    values = FAMILIES[family]
    read_architecture(values)
    for variant in variants(values):
        try:
            read_architecture(variant)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 2500  # that of an unknown architecture lists all


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("num_hidden_layers", value) for value in (10**9, 0, -1, 2.0, True, "2", [2])],
        *[("num_attention_heads", value) for value in (0, -4)],
        ("num_key_value_heads", 0),
        ("head_dim", 0),
        ("vocab_size", 2**60),
        *[("rms_norm_eps", value) for value in (-1e-5, "1e-5", 10)],
        *[("rope_theta", value) for value in (0, -1.0, 1, "10000")],
        *[("rope_scaling", value) for value in ("linear", ["linear"], 2, {"type": "linear", "factor": -2.0})],
        ("rope_scaling", {"rope_type": "linear", "factor": 0}),
        ("rope_scaling", {"rope_type": ["linear"], "factor": 2.0}),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": -1.0}),
        ("tie_word_embeddings", "false"),
        ("hidden_act", "silu" * 10**5),
        ("model_type", ["llama"]),
        ("model_type", "llama" * 10**5),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused_by_its_key(key, value):
    with pytest.raises(UserError) as refused:
        read_architecture({**LLAMA, key: value})
    named = {"rope_scaling": ("rope_scaling", "factor", "type")}.get(key, (key,))
    assert any(name in str(refused.value) for name in named) and len(str(refused.value)) < 300


def test_parts_that_nothing_reads_may_hold_anything():
    other = {"depth": "?", "num_heads": -1, "rope_theta": 0}
    omni = {"model_type": "qwen2_5_omni", "thinker_config": WHOLE["qwen2_5_omni_thinker"][1], "talker_config": other}
    _, config = read_architecture(omni)
    assert config.backbone.depth == TEXT["num_hidden_layers"]


def test_every_key_that_is_read_by_its_name_has_a_range():
    def keys(tree: ast.AST):
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and ast.unparse(node.value) in READ:
                yield node.slice
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"{name}.get" for name in READ}:
                yield node.args[0]
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ENTRIES:
                for argument in node.args[:1]:
                    yield from getattr(argument, "elts", [argument])

    files = pathlib.Path(published.__file__).parent.rglob("*.py")
    found = {
        node.value for file in files for node in keys(ast.parse(file.read_text())) if isinstance(node, ast.Constant)
    }
    assert len(found) > 100
    assert sorted(found - RANGES.keys()) == []


def test_a_checkpoint_with_a_hostile_config_is_refused_before_its_tensors_are_matched(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 10**9}))
    with pytest.raises(UserError, match=r"num_hidden_layers is 1000000000; it must be a whole number from 1 to 1024"):
        open_checkpoint(tmp_path)


def test_experts_that_do_not_go_together_are_refused():
    values = {"model_type": "qwen3_moe", **DECODERS["qwen3_moe"][1], **EXPERTS}
    with pytest.raises(UserError, match="top_k = 5 is more than count = 4"):
        read_architecture({**values, "num_experts_per_tok": 5})
