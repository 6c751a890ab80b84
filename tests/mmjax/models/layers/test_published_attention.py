"""Attention beside transformers' own layers, in float32."""

import jax.numpy as jnp
import numpy as np
import pytest

from configs.attention.rope import YarnScaling
from configs.modules.backbone import BackboneConfig
from mmjax.models.layers.attention import build_attention
from mmjax.models.modalities.attention_kinds import backbone_rotary, causal_mask
from sharding.axes import Axes
from tests.mmjax.weights.published.parity import assert_close, randomise_weights

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
transformers = pytest.importorskip("transformers")

LENGTH = 12
X = np.random.default_rng(0).normal(size=(2, LENGTH, 16)).astype(np.float32)
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 2.0,
    "truncate": False,
}
GPT_OSS = BackboneConfig(
    width=16,
    depth=2,
    heads=4,
    kv_heads=2,
    attention_width=32,
    biases=("query", "key", "value", "output"),
    attention_sinks=True,
    attention_pattern=("local", "global"),
    attention_window=4,
    rope_base=100.0,
    rope_scaling=YarnScaling(factor=4.0, original_positions=8, beta_fast=2.0, truncate=False),
)


@pytest.mark.parametrize("layer", [0, 1])
def test_sinks_and_a_yarn_that_does_not_truncate_equal_gpt_oss(layer):
    config = transformers.GptOssConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=4,
        rope_parameters=YARN,
        attn_implementation="eager",
    )
    theirs = randomise_weights(gpt_oss.GptOssAttention(config, layer), 0.3)
    order = np.arange(LENGTH)
    hidden = (order[None] > order[:, None]) | ((layer == 0) & (order[None] <= order[:, None] - 4))
    bias = torch.tensor(np.where(hidden, -np.inf, 0.0), dtype=torch.float32)[None, None]
    rotation = gpt_oss.GptOssRotaryEmbedding(config)(torch.tensor(X), torch.arange(LENGTH)[None])
    with torch.no_grad():
        expected, _ = theirs(torch.tensor(X), rotation, bias)

    ours = build_attention(GPT_OSS)
    assert ours.sinks is not None
    ours.sinks.set_value(jnp.asarray(theirs.sinks.detach()))
    for name, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
        projection = getattr(theirs, f"{letter}_proj")
        getattr(ours, name).kernel.set_value(jnp.asarray(projection.weight.detach().T))
        getattr(ours, name).bias.set_value(jnp.asarray(projection.bias.detach()))
    assert_close(np.asarray(ours(jnp.asarray(X), Axes(), **_inputs(GPT_OSS, layer))), expected.numpy(), 1e-5)


def _inputs(config: BackboneConfig, layer: int) -> dict:
    """Mask and rotation of a layer, in rows that are one segment each."""
    ones = jnp.ones((X.shape[0], LENGTH), jnp.int32)
    batch = {"segments": ones, "branches": 0 * ones, "positions": jnp.cumsum(ones, axis=1) - 1}
    kind = config.attention_pattern[layer]
    return {"mask": causal_mask(config, batch, kind), "rotary": backbone_rotary(config, batch["positions"], kind)}
