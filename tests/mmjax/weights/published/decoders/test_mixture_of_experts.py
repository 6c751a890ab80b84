"""Small random mixtures of experts of transformers: logits, balancing loss, export after import."""

import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import BackboneConfig, ExpertsConfig, ModelConfig
from configs.common.errors import UserError
from mmjax.models.layers.experts import BalancingWeights, load_balancing_loss
from mmjax.models.layers.router import route_tokens
from mmjax.weights import registry
from sharding.axes import Axes
from sharding.specs.modules import module_graph
from tests.mmjax.weights.published.decoders.decoder_parity import (
    TOKENS,
    backbone_logits,
    export_backbone,
    read_backbone_config,
)
from tests.mmjax.weights.published.parity import assert_close, randomise_weights, same_tensors

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 24,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.02,
}
MIXTRAL = {**SMALL, "intermediate_size": 24, "num_local_experts": 4, "sliding_window": None}
QWEN = {
    **SMALL,
    "intermediate_size": 20,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 20,
    "num_experts": 6,
}
QWEN3 = {**SMALL, "head_dim": 8, "intermediate_size": 20, "moe_intermediate_size": 12, "num_experts": 6}
GPT_OSS = {**SMALL, "head_dim": 8, "intermediate_size": 12, "num_local_experts": 6, "sliding_window": 5}
DEEPSEEK = {
    **SMALL,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "intermediate_size": 20,
    "moe_intermediate_size": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 6,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "aux_loss_alpha": 0.06,
}
LLAMA4 = {
    **SMALL,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "intermediate_size": 12,
    "intermediate_size_mlp": 20,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 5,
    "pad_token_id": 0,
}
DEEPSEEK_V2 = {**DEEPSEEK, "q_lora_rank": None, "topk_method": "greedy", "routed_scaling_factor": 1.5}
CASES = {
    "deepseek_v2": ("DeepseekV2", DEEPSEEK_V2),
    "deepseek_v2, in groups": ("DeepseekV2", {**DEEPSEEK_V2, "topk_method": "group_limited_greedy"}),
    "qwen3_moe": ("Qwen3Moe", {**QWEN3, "norm_topk_prob": True}),
    "qwen3_moe, dense layers between": (
        "Qwen3Moe",
        {**QWEN3, "norm_topk_prob": True, "num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [0, 1]},
    ),
    "mixtral": ("Mixtral", MIXTRAL),
    "qwen2_moe": ("Qwen2Moe", QWEN),
    "deepseek_v3": ("DeepseekV3", DEEPSEEK),
    "deepseek_v3, without groups and dense layers": (
        "DeepseekV3",
        {**DEEPSEEK, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "n_shared_experts": 1},
    ),
    "glm4_moe": ("Glm4Moe", {**DEEPSEEK, "head_dim": 8}),
    "glm4_moe, normed queries with biases": (
        "Glm4Moe",
        {**DEEPSEEK, "use_qk_norm": True, "attention_bias": True, "partial_rotary_factor": 1.0, "n_shared_experts": 1},
    ),
    "llama4_text, of Scout's form": ("Llama4", LLAMA4),
    "llama4_text, of Maverick's form": (
        "Llama4",
        {**LLAMA4, "interleave_moe_layer_step": 2, "num_experts_per_tok": 2},
    ),
    "gpt_oss": ("GptOss", {**GPT_OSS, "swiglu_limit": 1.0}),
    "gpt_oss, unscaled": ("GptOss", {**GPT_OSS, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    "qwen2_moe, normalised": ("Qwen2Moe", {**QWEN, "norm_topk_prob": True, "num_experts_per_tok": 3}),
}


def published_config(kind: str, values: dict):
    """A configuration of transformers; Llama 4's class has another name than its model."""
    return getattr(transformers, f"{kind}TextConfig" if kind == "Llama4" else f"{kind}Config")(**values)


def published_logits(folder: pathlib.Path) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits.numpy()


@pytest.mark.parametrize("case", CASES)
def test_logits_match_transformers_and_export_is_bit_identical(case, tmp_path):
    kind, values = CASES[case]
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(published_config(kind, values))
    randomise_weights(model, 0.3)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0, 0.1)
    model.save_pretrained(tmp_path / "theirs")
    expected = published_logits(tmp_path / "theirs")
    assert_close(backbone_logits(tmp_path / "theirs"), expected)

    output = export_backbone(tmp_path / "theirs", tmp_path / "again")
    assert same_tensors(tmp_path / "theirs", output)
    config = read_backbone_config(tmp_path / "theirs")
    # Without `output_router_logits` transformers adds no balancing loss.
    assert config.experts.balance_weight == (0.02 if "aux_loss_alpha" in values else 0.0)
    assert config.experts.router.normalise == (case != "qwen2_moe" and kind not in ("DeepseekV2", "Llama4"))
    published = registry.find_architecture(case.partition(",")[0])
    written = registry.write_architecture(published, config)
    assert published.read_config(json.loads(json.dumps(written))) == config
    (output / "config.json").write_text(json.dumps({**written, "torch_dtype": "float32"}))
    np.testing.assert_allclose(published_logits(output), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "values", "billions"),
    [
        ("DeepseekV3", {"num_hidden_layers": 61}, 671),
        ("Glm4Moe", {"attention_bias": True, "head_dim": 128}, 107),
        ("Llama4", {"num_local_experts": 16}, 108),
        ("Llama4", {"num_local_experts": 128, "interleave_moe_layer_step": 2}, 401),
        ("GptOss", {"num_hidden_layers": 24, "num_local_experts": 32}, 21),
    ],
)
def test_parameters_of_published_sizes_are_as_many(kind, values, billions):
    """Of DeepSeek-V3, GLM-4.5-Air, Llama 4 Scout and Maverick, and gpt-oss-20b."""
    theirs_config = published_config(kind, values)
    with torch.device("meta"):
        theirs = getattr(transformers, f"{kind}ForCausalLM")(theirs_config)
    biases = sum(buffer.numel() for name, buffer in theirs.named_buffers() if name.endswith("correction_bias"))
    config = registry.find_architecture(theirs_config.model_type).read_config(theirs_config.to_dict())
    count = module_graph(ModelConfig((), config, ()))["backbone"].parameter_count
    assert count == sum(parameter.numel() for parameter in theirs.parameters()) + biases
    assert round(count / 1e9) == billions


@pytest.mark.parametrize("padded", [False, True])
def test_the_balancing_loss_of_one_sample_matches_transformers(padded):
    """transformers takes the tokens of all layers as one batch, which equals one sample with as many tokens here."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    random = np.random.default_rng(0)
    rows, tokens, experts, top, layers = 2, 5, 4, 2, 3
    logits = random.normal(size=(layers, rows * tokens, experts)).astype(np.float32)
    mask = np.ones((rows, tokens), np.int64)
    mask[0, 3:] = 1 - padded
    theirs = load_balancing_loss_func(
        tuple(torch.tensor(each) for each in logits), experts, top, torch.tensor(mask) if padded else None
    )
    routing = route_tokens(jnp.asarray(logits.reshape(1, -1, experts)), ExpertsConfig(count=experts, top_k=top))
    segments = np.tile(mask.reshape(1, -1), (1, layers)).astype(np.int32)
    shares = (segments / segments.sum()).astype(np.float32)
    balancing = BalancingWeights(jnp.asarray(segments), jnp.asarray(shares))
    ours = load_balancing_loss(routing.probabilities, routing.experts, balancing, Axes())
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("mixtral", {**MIXTRAL, "sliding_window": 8}, "sliding_window is 8"),
        ("qwen2_moe", {**QWEN, "mlp_only_layers": [1]}, r"mlp_only_layers is \[1\]"),
        ("qwen2_moe", {**QWEN, "decoder_sparse_step": 3}, "no block of depth = 2 has experts"),
        ("deepseek_v2", {**DEEPSEEK_V2, "topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'; only greedy and"),
        ("deepseek_v2", {**DEEPSEEK_V2, "norm_topk_prob": True}, "norm_topk_prob is True; only False"),
        ("deepseek_v3", {**DEEPSEEK, "scoring_func": "softmax"}, "scoring_func is 'softmax'; only 'sigmoid'"),
        ("deepseek_v3", {**DEEPSEEK, "topk_method": "greedy"}, "topk_method is 'greedy'"),
        ("deepseek_v3", {**DEEPSEEK, "n_group": 3}, "has 3 groups, which must divide the 8 experts"),
        ("llama4_text", {**LLAMA4, "moe_layers": [0, 3]}, r"moe_layers is \[0, 3\] of 4"),
        ("llama4_text", {**LLAMA4, "moe_layers": [1, 2]}, r"moe_layers is \[1, 2\] of 4"),
        ("gpt_oss", {**GPT_OSS, "swiglu_alpha": 1.5}, "swiglu_alpha is 1.5; only 1.702"),
        ("gpt_oss", {**GPT_OSS, "hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ],
)
def test_unsupported_values_are_refused_by_key(model_type, values, message):
    with pytest.raises(UserError, match=message):
        registry.read_architecture({"model_type": model_type, **values})


@pytest.mark.parametrize(
    ("model_type", "experts", "message"),
    [
        ("mixtral", None, "experts is None"),
        ("mixtral", ExpertsConfig(shared_ffn=8), "experts.shared_ffn is 8"),
        ("qwen2_moe", ExpertsConfig(), "shared_ffn is 0"),
        ("gpt_oss", ExpertsConfig(), "experts.biases is False, but the published architecture has True"),
    ],
)
def test_writing_an_unsupported_configuration_is_refused(model_type, experts, message):
    with pytest.raises(UserError, match=message):
        registry.write_architecture(registry.find_architecture(model_type), BackboneConfig(experts=experts))
