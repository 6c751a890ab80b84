"""Decoders of published size: every tensor of transformers' has a parameter of its shape, and a layer its outputs."""

import pytest

from tests.mmjax.weights.published.decoders.decoder_parity import TOKENS, backbone_logits
from tests.mmjax.weights.published.parity import (
    assert_close,
    assert_names_and_shapes,
    randomise_weights,
    single_threaded_torch,
)

pytestmark = pytest.mark.parity

transformers = pytest.importorskip("transformers")

DEFAULTS = ("Llama", "Mistral", "Qwen3", "Gemma2", "Gemma3Text", "Olmo2", "Olmo3", "Phi3")
"""Those whose default configuration is of a published model."""

CONFIGURATIONS = {kind: (kind, {}) for kind in DEFAULTS} | {
    "Phi-4-mini": (
        "Phi3",
        {
            "vocab_size": 200064,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0] * 48,
                "long_factor": [1.5] * 48,
            },
        },
    ),
    "OLMo-3-32B": (
        "Olmo3",
        {
            "vocab_size": 100278,
            "hidden_size": 5120,
            "intermediate_size": 27648,
            "num_hidden_layers": 64,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
        },
    ),
    "the first layers of DeepSeek-V3": ("DeepseekV3", {"num_hidden_layers": 3}),
    "the attention of Llama 4 Scout": ("Llama4Text", {"num_hidden_layers": 4, "moe_layers": []}),
}
CLASSES = {"Gemma3Text": "Gemma3ForCausalLM", "Llama4Text": "Llama4ForCausalLM"}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_names_and_shapes_are_those_of_transformers(name):
    torch = single_threaded_torch()
    kind, values = CONFIGURATIONS[name]
    with torch.device("meta"):
        config = getattr(transformers, f"{kind}Config")(**values)
        theirs = getattr(transformers, CLASSES.get(kind, f"{kind}ForCausalLM"))(config)
    assert_names_and_shapes(theirs, "backbone")


LAYERS = {
    "DeepSeek-V2-Lite's widths": (
        "DeepseekV3",
        {
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 40.0,
                "original_max_position_embeddings": 4096,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
            },
        },
    ),
    "Phi-4-mini's widths": (
        "Phi3",
        {**CONFIGURATIONS["Phi-4-mini"][1], "pad_token_id": 0},
    ),
}
"""A layer of each has the widths of its attention; vocabularies and feed-forward layers are small."""


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_as_wide_as_published_has_the_same_logits(name, tmp_path):
    torch = single_threaded_torch()
    kind, values = LAYERS[name]
    small = {"vocab_size": 24, "num_hidden_layers": 1, "intermediate_size": 32}
    config = getattr(transformers, f"{kind}Config")(**values | small)
    theirs = randomise_weights(getattr(transformers, f"{kind}ForCausalLM")(config), 0.05)
    theirs.save_pretrained(tmp_path / "saved")
    with torch.no_grad():
        expected = theirs(torch.tensor(TOKENS)).logits.numpy()
    assert_close(backbone_logits(tmp_path / "saved"), expected)
