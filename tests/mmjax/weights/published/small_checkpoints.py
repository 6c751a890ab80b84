"""Folders of small random models that transformers saves, of every family that is read, by configuration classes."""

import dataclasses
import pathlib
from typing import Any

VOCABULARY = 272  # those of the byte tokenizer, and a few
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEAD = {"head_dim": 8}
GEMMA = {**HEAD, "query_pre_attn_scalar": 12, "sliding_window": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 36,
    "image_size": 16,
    "patch_size": 4,
}
QWEN_VISION = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 4,
    "hidden_size": 24,
    "out_hidden_size": 32,
    "intermediate_size": 36,
}
QWEN25_VISION = {**QWEN_VISION, "window_size": 8, "fullatt_block_indexes": [1]}
QWEN3_VISION = {**QWEN_VISION, "num_position_embeddings": 25, "deepstack_visual_indexes": [0]}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}


@dataclasses.dataclass(frozen=True)
class SmallModel:
    """A model of transformers.

    Attributes:
        prefix: Of the names of its classes.
        suffix: Of its class.
        values: Of its configuration.
        vision: Name of the class of `vision_config`; empty for a dictionary, or none.
        text: Likewise of `text_config`.
    """

    prefix: str
    suffix: str
    values: dict[str, Any]
    vision: str = ""
    text: str = ""

    def save(self, folder: pathlib.Path) -> Any:
        """Writes the folder, and returns the model."""
        import torch
        import transformers

        values = dict(self.values)
        for key, name in (("vision_config", self.vision), ("text_config", self.text)):
            if name:
                values[key] = getattr(transformers, name)(**values[key])
        torch.manual_seed(0)
        config = getattr(transformers, f"{self.prefix.removesuffix('Vision')}Config" if 0 else f"{self.prefix}Config")
        model = getattr(transformers, f"{self.prefix}{self.suffix}")(config(**values)).eval()
        model.save_pretrained(folder)
        return model


DECODERS = {
    "llama": SmallModel("Llama", "ForCausalLM", TEXT),
    "qwen2": SmallModel("Qwen2", "ForCausalLM", TEXT),
    "mistral": SmallModel("Mistral", "ForCausalLM", {**TEXT, **HEAD, "sliding_window": 8}),
    "qwen3": SmallModel("Qwen3", "ForCausalLM", {**TEXT, **HEAD}),
    "qwen3_moe": SmallModel("Qwen3Moe", "ForCausalLM", {**TEXT, **HEAD, **EXPERTS}),
    "gemma2": SmallModel("Gemma2", "ForCausalLM", {**TEXT, **GEMMA}),
    "gemma3_text": SmallModel("Gemma3", "ForCausalLM", {**TEXT, **GEMMA, "num_hidden_layers": 6}),
    "olmo2": SmallModel("Olmo2", "ForCausalLM", TEXT),
    "phi3": SmallModel("Phi3", "ForCausalLM", TEXT),
}
