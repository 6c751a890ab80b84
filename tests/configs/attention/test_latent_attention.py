"""Options that latent attention has not are refused by name."""

import pytest

from configs.attention.latent_attention import LatentAttentionConfig
from configs.modules.backbone import BackboneConfig

LATENT = LatentAttentionConfig(query_rank=6, kv_rank=8, nope_width=4, rope_width=2, value_width=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_heads": 2}, "kv_heads is 2; with latent_attention all 4 heads"),
        ({"positions": "learned"}, "positions is 'learned'"),
        ({"attention_sinks": True}, "attention_sinks is True, which latent_attention has not"),
        ({"biases": ("mlp", "key")}, r"biases is \('mlp', 'key'\)"),
        ({"qk_norm": "head"}, "qk_norm is 'head'"),
        ({"attention_width": 64}, "attention_width is 64"),
    ],
)
def test_options_that_latent_attention_has_not_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BackboneConfig(**{"heads": 4, "kv_heads": 4, "latent_attention": LATENT, **options})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("rope_width", 3, "rope_width is 3"), ("query_rank", -1, "query_rank is -1"), ("kv_rank", 0, "kv_rank is 0")],
)
def test_widths_that_cannot_be_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        LatentAttentionConfig(**{field: value})


def test_heads_are_as_wide_as_their_two_parts():
    config = BackboneConfig(heads=4, kv_heads=4, latent_attention=LATENT)
    assert (config.head_width, config.query_width, config.rotary_width) == (6, 24, 2)
