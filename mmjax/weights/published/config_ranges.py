"""The type and range of every key of a config.json that is read, checked when it is read.

A config.json is what somebody else wrote: a key that is text, negative or 10⁹ must become an error that names it, not a
traceback, a model that trains wrongly, or a loop without an end. Keys that nothing reads are not looked at.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from configs.common.shown_text import shortened

MAX_ITEMS = 4096
"""Largest number of items of a list: more than any model has layers or channels of a head."""

MAX_TEXT = 200
"""Largest number of characters of a text: every text in a config.json is a name."""

_SHOWN = 60  # characters of a value in a message


@dataclasses.dataclass(frozen=True)
class _Range:
    """Numbers from `low` to `high`; `above` says that `low` itself is too low, `whole` that they have no fraction."""

    low: int | float
    high: int | float
    above: bool = False
    whole: bool = True

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        if self.whole:
            return f"a whole number from {self.low} to {self.high}"
        return f"a number {'above' if self.above else 'from'} {self.low:g}, up to {self.high:g}"


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Values of a type: `true` and `false`, texts, or objects."""

    type: type
    words: str

    def __contains__(self, value: object) -> bool:
        return isinstance(value, self.type) and (not isinstance(value, str) or len(value) <= MAX_TEXT)

    def __str__(self) -> str:
        return self.words


@dataclasses.dataclass(frozen=True)
class _List:
    """Lists of values of one kind."""

    item: "_Values"

    def __contains__(self, value: object) -> bool:
        return isinstance(value, list | tuple) and len(value) <= MAX_ITEMS and all(each in self.item for each in value)

    def __str__(self) -> str:
        return f"a list, of up to {MAX_ITEMS} items, each {self.item}"


@dataclasses.dataclass(frozen=True)
class _Either:
    """Values of one of two kinds."""

    first: "_Values"
    second: "_Values"

    def __contains__(self, value: object) -> bool:
        return value in self.first or value in self.second

    def __str__(self) -> str:
        return f"{self.first}, or {self.second}"


_Values = _Range | _Kind | _List | _Either


def _numbers(low: int | float, high: int | float, above: bool = False) -> _Range:
    return _Range(low, high, above, whole=False)


_FLAG, _TEXT, _OBJECT = _Kind(bool, "true or false"), _Kind(str, "a short text"), _Kind(Mapping, "an object")
_LAYERS, _WIDTH, _COUNT = _Range(1, 1024), _Range(1, 2**24), _Range(1, 2**31)
_EPSILON, _BASE = _numbers(0, 1), _numbers(1, 1e15, above=True)
_FRACTION, _FACTOR = _numbers(0, 1, above=True), _numbers(0, 1e9, above=True)
_NOT_NEGATIVE, _ANY_NUMBER = _numbers(0, 1e9), _numbers(-1e9, 1e9)
_LAYER_NUMBERS, _SIDES = _List(_Range(0, 1023)), _Either(_WIDTH, _List(_WIDTH))

_KEYS: tuple[tuple[_Values, str], ...] = (
    (_LAYERS, "num_hidden_layers n_layer encoder_layers depth num_layers layers_per_block"),
    (_Range(0, 1024), "num_single_layers first_k_dense_replace"),
    (_LAYERS, "interleave_moe_layer_step no_rope_layer_interval decoder_sparse_step"),
    (_LAYER_NUMBERS, "mlp_only_layers moe_layers no_rope_layers dual_attention_layers"),
    (_LAYER_NUMBERS, "fullatt_block_indexes deepstack_visual_indexes"),
    (_Either(_Range(-1024, 1023), _List(_Range(-1024, 1023))), "vision_feature_layer"),
    (_Range(-1024, 1023), "select_layer"),
    (_Range(1, 2**16), "num_attention_heads num_key_value_heads n_head encoder_attention_heads num_heads"),
    (_Range(1, 1024), "num_experts num_local_experts n_routed_experts num_experts_per_tok n_group topk_group"),
    (_Range(0, 1024), "n_shared_experts num_register_tokens"),
    (_WIDTH, "hidden_size head_dim intermediate_size intermediate_size_mlp n_embd n_inner d_model encoder_ffn_dim"),
    (_WIDTH, "embed_dim moe_intermediate_size vocab_size projection_dim"),
    (_Range(0, 2**24), "shared_expert_intermediate_size sliding_window"),
    (_WIDTH, "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim num_mel_bins n_window"),
    (
        _WIDTH,
        "num_channels in_channels in_chans out_channels latent_channels joint_attention_dim pooled_projection_dim",
    ),
    (_WIDTH, "norm_num_groups pos_embed_max_size projection_class_embeddings_input_dim projector_output_dim"),
    (_WIDTH, "spatial_merge_size temporal_patch_size window_size num_position_embeddings num_patches"),
    (_WIDTH, "mm_tokens_per_image num_train_timesteps"),
    (_SIDES, "patch_size image_size img_size ref_feat_shape sample_size attention_head_dim cross_attention_dim"),
    (_List(_WIDTH), "block_out_channels axes_dims_rope mrope_section"),
    (_COUNT, "max_position_embeddings original_max_position_embeddings n_positions attention_chunk_size"),
    (_EPSILON, "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps"),
    (_BASE, "rope_theta rope_local_base_freq rope_temperature"),
    (_FRACTION, "partial_rotary_factor downsample_ratio pixel_shuffle_ratio"),
    (_FACTOR, "factor low_freq_factor high_freq_factor beta_slow beta_fast attention_factor routed_scaling_factor"),
    (_FACTOR, "query_pre_attn_scalar scaling_factor mlp_ratio floor_scale"),
    (_List(_FACTOR), "short_factor long_factor image_std std"),
    (_List(_ANY_NUMBER), "image_mean mean"),
    (_NOT_NEGATIVE, "mscale mscale_all_dim aux_loss_alpha router_aux_loss_coef swiglu_limit"),
    (_NOT_NEGATIVE, "attn_logit_softcapping final_logit_softcapping tokens_per_second position_id_per_seconds"),
    (_NOT_NEGATIVE, "beta_start beta_end"),
    (_ANY_NUMBER, "attn_scale shift_factor layerscale_value layer_scale_init_value initializer_factor"),
    (_Either(_FLAG, _Range(0, 1024)), "attn_temperature_tuning"),
    (_FLAG, "attention_bias mlp_bias qkv_bias bias tie_word_embeddings norm_topk_prob use_sliding_window truncate"),
    (
        _FLAG,
        "rope_interleave use_qk_norm qk_normalization scale_embedding use_swiglu_ffn use_gated_mlp guidance_embeds",
    ),
    (_FLAG, "query_bias key_bias value_bias proj_bias class_embeddings_concat use_linear_projection"),
    (_FLAG, "use_quant_conv use_post_quant_conv"),
    (_FLAG, "use_mean_pooling use_absolute_position_embeddings use_bidirectional_attention swiglu_mlp scale_mlp"),
    (_FLAG, "output_router_logits scale_attn_inner use_rot_pos_emb qkv_fused use_post_norm"),
    (
        _TEXT,
        "model_type _class_name architecture hidden_act hidden_activation activation_function ps_version norm_type",
    ),
    (_TEXT, "rope_type type topk_method prediction_type projector_hidden_act vision_feature_select_strategy"),
    (_TEXT, "class_embed_type global_pool norm_type"),
    (_Either(_TEXT, _FLAG), "qk_norm"),
    (_List(_TEXT), "layer_types down_block_types up_block_types"),
    (_OBJECT, "rope_scaling rope_parameters full_attention sliding_attention"),
    (_OBJECT, "text_config vision_config audio_config thinker_config llm_config model_args pretrained_cfg"),
)

RANGES: Mapping[str, Any] = {key: values for values, keys in _KEYS for key in keys.split()}
"""The type and range of each key; `null` counts as left out where the architecture allows the key to be left out."""


class CheckedValues(Mapping[str, Any]):
    """The contents of a config.json, or of an object in it, each value of which is checked when it is read.

    Args:
        values: The object.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if value is not None and key in RANGES and value not in RANGES[key]:
            raise ValueError(f"{key} is {shown(value)}; it must be {RANGES[key]}")
        return CheckedValues(value) if isinstance(value, Mapping) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def shown(value: object) -> str:
    """Formats a value for a message."""
    return shortened(repr(value), _SHOWN)
