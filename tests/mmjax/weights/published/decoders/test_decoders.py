"""Small random decoders of transformers: logits, export after import, configurations."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from configs.architectures import BackboneConfig
from configs.attention.rope import Llama3Scaling, LongRopeScaling, YarnScaling
from configs.common.errors import UserError
from mmjax.weights import registry
from mmjax.weights.folder import write_checkpoint_folder
from mmjax.weights.safetensors_file import TensorHeader
from tests.mmjax.weights.published.decoders.decoder_parity import (
    TOKENS,
    backbone_logits,
    export_backbone,
    import_backbone,
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
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}
ORIGINAL = 8  # fewer positions than the tokens have, so that stretching shows
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
MSCALES = {"mscale": 1.0, "mscale_all_dim": 0.5}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}
GPT2 = {"vocab_size": 24, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 24, "n_positions": 32}
WIDE = {"head_dim": 8, "query_pre_attn_scalar": 12, "sliding_window": 5}

LATENT = {
    **SMALL,
    "num_key_value_heads": 4,
    "q_lora_rank": 6,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
    "rms_norm_eps": 1e-3,
    "first_k_dense_replace": 2,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
}
OLMO3 = {**SMALL, "num_hidden_layers": 5, "sliding_window": 3}
LOCAL_ROPE = {"rope_type": "default", "rope_theta": 100.0}
PHI4_MINI = {**SMALL, "hidden_size": 32, "sliding_window": None, "pad_token_id": 0, "tie_word_embeddings": True}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [2.0, 4.0, 8.0],
    "partial_rotary_factor": 0.75,
}
LLAMA4 = {
    **SMALL,
    "num_hidden_layers": 5,
    "head_dim": 8,
    "intermediate_size_mlp": 24,
    "moe_layers": [],
    "attention_chunk_size": 5,
    "floor_scale": 3,
    "attn_scale": 0.7,
    "rms_norm_eps": 1e-3,
}

CASES = {
    "llama 2": ("Llama", SMALL),
    "llama with biases, tied": (
        "Llama",
        {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama 3.1": ("Llama", {**SMALL, "rope_parameters": LLAMA3}),
    "llama stretched by yarn": ("Llama", {**SMALL, "rope_parameters": YARN}),
    "llama stretched by a yarn with all keys": (
        "Llama",
        {**SMALL, "rope_parameters": {**YARN, "beta_fast": 2.0, "truncate": False, **MSCALES}},
    ),
    "llama stretched linearly": ("Llama", {**SMALL, "rope_parameters": LINEAR}),
    "qwen 2": ("Qwen2", SMALL),
    "qwen 2.5, tied": ("Qwen2", {**SMALL, "tie_word_embeddings": True}),
    "gpt 2": ("GPT2", GPT2),
    "mistral": ("Mistral", {**SMALL, "head_dim": 8, "sliding_window": 5}),
    "mistral without a window": ("Mistral", {**SMALL, "sliding_window": None}),
    "qwen 3": ("Qwen3", {**SMALL, "head_dim": 8}),
    "gemma": ("Gemma", {**SMALL, "head_dim": 8}),
    "gemma 2": ("Gemma2", {**SMALL, "num_hidden_layers": 3, **WIDE, "attn_logit_softcapping": 2.0}),
    "gemma 3": ("Gemma3Text", {**SMALL, "num_hidden_layers": 7, **WIDE}),
    "olmo 2": ("Olmo2", SMALL),
    "deepseek v3 without experts": ("DeepseekV3", LATENT),
    "deepseek v3 without experts, queries from the input, stretched": (
        "DeepseekV3",
        {**LATENT, "q_lora_rank": None, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}},
    ),
    "olmo 3": ("Olmo3", {**OLMO3, "rope_parameters": {"full_attention": YARN, "sliding_attention": LOCAL_ROPE}}),
    "olmo 3, not stretched": ("Olmo3", OLMO3),
    "phi 4 mini": ("Phi3", {**PHI4_MINI, "rope_parameters": LONGROPE, "original_max_position_embeddings": 16}),
    "llama 4 without experts": ("Llama4Text", LLAMA4),
    "llama 4 without experts, chunks, temperature and norms": (
        "Llama4Text",
        {
            **LLAMA4,
            "attention_chunk_size": None,
            "attn_temperature_tuning": False,
            "use_qk_norm": False,
            "rope_parameters": {**LLAMA3, "high_freq_factor": 1.0},
        },
    ),
    "phi 3": ("Phi3", {**SMALL, "sliding_window": 5, "pad_token_id": 0}),
}
CLASSES = {
    "Llama": "LlamaForCausalLM",
    "Qwen2": "Qwen2ForCausalLM",
    "GPT2": "GPT2LMHeadModel",
    "Mistral": "MistralForCausalLM",
    "Qwen3": "Qwen3ForCausalLM",
    "Gemma": "GemmaForCausalLM",
    "Gemma2": "Gemma2ForCausalLM",
    "Gemma3Text": "Gemma3ForCausalLM",
    "Olmo2": "Olmo2ForCausalLM",
    "DeepseekV3": "DeepseekV3ForCausalLM",
    "Olmo3": "Olmo3ForCausalLM",
    "Llama4Text": "Llama4ForCausalLM",
    "Phi3": "Phi3ForCausalLM",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a function that gives the folder of a case's model, saved by transformers, and its logits."""
    made: dict[str, tuple[pathlib.Path, np.ndarray]] = {}

    def save(case: str) -> tuple[pathlib.Path, np.ndarray]:
        if case not in made:
            kind, values = CASES[case]
            torch.manual_seed(0)
            config = getattr(transformers, f"{kind}Config")(**values)
            model = getattr(transformers, CLASSES[kind])(config).eval()
            randomise_weights(model, 0.3)
            folder = tmp_path_factory.mktemp("saved") / kind
            model.save_pretrained(folder)
            made[case] = folder, published_logits(folder)
        return made[case]

    return save


def published_logits(folder: pathlib.Path) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits.numpy()


@pytest.mark.parametrize("case", CASES)
def test_logits_match_transformers(case, saved):
    folder, expected = saved(case)
    assert_close(backbone_logits(folder), expected)


@pytest.mark.parametrize("case", CASES)
def test_export_after_import_is_bit_identical(case, saved, tmp_path):
    folder, expected = saved(case)
    output = export_backbone(folder, tmp_path / "again")
    assert same_tensors(folder, output)
    np.testing.assert_array_equal(published_logits(output), expected)


@pytest.mark.parametrize("case", CASES)
def test_a_written_config_reads_back_equal(case, saved, tmp_path):
    folder, expected = saved(case)
    config = read_backbone_config(folder)
    published = registry.find_architecture(json.loads((folder / "config.json").read_text())["model_type"])
    values = registry.write_architecture(published, config)
    assert published.read_config(json.loads(json.dumps(values))) == config
    output = export_backbone(folder, tmp_path / "again")
    (output / "config.json").write_text(json.dumps({**values, "torch_dtype": "float32"}))
    np.testing.assert_allclose(published_logits(output), expected, atol=1e-6)


def test_rope_scaling_is_read(saved):
    assert isinstance(read_backbone_config(saved("llama 3.1")[0]).rope_scaling, Llama3Scaling)
    assert isinstance(read_backbone_config(saved("llama stretched by yarn")[0]).rope_scaling, YarnScaling)


def test_longrope_divides_by_other_numbers_in_long_texts(saved, tmp_path):
    """As many tokens as exceed the original positions, for which transformers changes to the other numbers."""
    folder = saved("phi 4 mini")[0]
    values = json.loads((folder / "config.json").read_text())
    values |= {"original_max_position_embeddings": ORIGINAL}
    values["rope_parameters"]["original_max_position_embeddings"] = ORIGINAL
    (copy := tmp_path / "long").mkdir()
    (copy / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (copy / "config.json").write_text(json.dumps(values))
    config = read_backbone_config(copy)
    assert (
        isinstance(config.rope_scaling, LongRopeScaling)
        and config.rope_scaling.factor == 8.0
        and config.rope_width == 6
    )
    long = dataclasses.replace(config, rope_scaling=dataclasses.replace(config.rope_scaling, long=True))
    assert_close(backbone_logits(copy, config=long), published_logits(copy))
    phi = registry.find_architecture("phi3")
    assert registry.write_architecture(phi, long) == registry.write_architecture(phi, config)


def test_internlm2_is_a_llama_in_another_layout(saved, tmp_path):
    """transformers has no InternLM2, so the test writes the weights of a Llama in InternLM2's layout."""
    folder, expected = saved("llama 2")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    heads, kv_heads, width = SMALL["num_attention_heads"], SMALL["num_key_value_heads"], SMALL["hidden_size"]
    each = width // heads
    tensors = {
        "model.tok_embeddings.weight": state["model.embed_tokens.weight"],
        "model.norm.weight": state["model.norm.weight"],
        "output.weight": state["lm_head.weight"],
    }
    for layer in range(SMALL["num_hidden_layers"]):
        theirs, ours = f"model.layers.{layer}.", f"model.layers.{layer}."
        query, key, value = (state[f"{ours}self_attn.{name}_proj.weight"] for name in "qkv")
        rows = []
        for group in range(kv_heads):
            shared = heads // kv_heads * each
            rows.append(query[group * shared : (group + 1) * shared])
            rows += [of[group * each : (group + 1) * each] for of in (key, value)]
        tensors[f"{theirs}attention.wqkv.weight"] = np.concatenate(rows)
        tensors[f"{theirs}attention.wo.weight"] = state[f"{ours}self_attn.o_proj.weight"]
        for name, called in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
            tensors[f"{theirs}feed_forward.{name}.weight"] = state[f"{ours}mlp.{called}_proj.weight"]
        tensors[f"{theirs}attention_norm.weight"] = state[f"{ours}input_layernorm.weight"]
        tensors[f"{theirs}ffn_norm.weight"] = state[f"{ours}post_attention_layernorm.weight"]
    values = {**SMALL, "model_type": "internlm2", "rms_norm_eps": 1e-6, "bias": False, "torch_dtype": "float32"}
    declared = {name: TensorHeader("F32", array.shape) for name, array in tensors.items()}
    written = tmp_path / "internlm2"
    write_checkpoint_folder(
        written, "model", declared, iter(tensors.items()), 10**9, {"config.json": json.dumps(values)}
    )
    assert_close(backbone_logits(written), expected)
    assert same_tensors(written, export_backbone(written, tmp_path / "again"))
    assert import_backbone(written).keys() == import_backbone(folder).keys()


@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("llama", {**SMALL, "hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
        ("llama", {**SMALL, "rope_parameters": {"rope_type": "dynamic"}}, "of type 'dynamic'; only default, linear"),
        ("llama", {**SMALL, "rope_parameters": {"full_attention": YARN}}, "are those of full_attention apart"),
        ("olmo3", {**OLMO3, "rope_parameters": {"full_attention": LOCAL_ROPE, "sliding_attention": YARN}}, "'yarn'"),
        ("gemma", {**SMALL, "hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("gemma2", {**SMALL, "use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ("mistral", {**SMALL, "layer_types": ["chunked_attention"] * 2}, "layer_types is"),
        ("phi3", {**SMALL, "attention_bias": True}, "attention_bias is true"),
        ("deepseek_v3", {**LATENT, "attention_bias": True}, "attention_bias is true"),
        ("deepseek_v3", {**LATENT, "rope_interleave": False}, "rope_interleave is false"),
        ("deepseek_v3", {**LATENT, "num_key_value_heads": 2}, "num_key_value_heads is 2; only 4"),
        ("llama4_text", {**LLAMA4, "layer_types": ["chunked_attention"] * 5}, "layer 3 has chunked_attention and no"),
        ("llama4_text", {**LLAMA4, "attention_bias": True}, "attention_bias is true"),
        ("qwen2", {**SMALL, "use_sliding_window": True}, "use_sliding_window is true"),
        ("gpt2", {**GPT2, "activation_function": "tanh"}, "activation_function is 'tanh'"),
        ("gpt2", {**GPT2, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ("internlm2", {**SMALL, "bias": True}, "bias is true"),
    ],
)
def test_unsupported_values_are_refused_by_key(model_type, values, message):
    with pytest.raises(UserError, match=message):
        registry.read_architecture({"model_type": model_type, **values})


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("llama", {"qk_norm": "head"}, "qk_norm is 'head', but the published architecture has 'none'"),
        ("qwen2", {}, r"biases is \(\), but the published architecture has \('query', 'key', 'value'\)"),
        ("gpt2", {"activation": "gelu"}, "norm is 'rmsnorm', but the published architecture has 'layernorm'"),
    ],
)
def test_writing_an_unsupported_configuration_is_refused(model_type, changes, message):
    with pytest.raises(UserError, match=message):
        registry.write_architecture(registry.find_architecture(model_type), BackboneConfig(**changes))
