"""Rotation by time, row and column: transformers' cosines and sines, and the rotation of text."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import BackboneConfig
from configs.attention.rope import YarnScaling
from configs.common.errors import UserError
from mmjax.models.modalities.attention_kinds import backbone_rotary

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig  # noqa: E402
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding  # noqa: E402
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig  # noqa: E402
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding  # noqa: E402

POSITIONS = np.random.default_rng(0).integers(0, 3000, (2, 5, 3))
KINDS = {
    "qwen 2.5": (Qwen2_5_VLTextConfig, Qwen2_5_VLRotaryEmbedding, (16, 24, 24), False),
    "qwen 3": (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding, (24, 20, 20), True),
}


def backbone(sections, interleaved, **fields):
    return BackboneConfig(
        width=256, heads=2, rope_base=1e6, rope_sections=sections, rope_interleaved=interleaved, **fields
    )


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_cosines_and_sines_are_transformers(kind, scaled):
    config_type, rotary_type, sections, interleaved = KINDS[kind]
    rope = {"rope_theta": 1e6, "mrope_section": list(sections), "rope_type": "default"}
    if interleaved:
        rope["mrope_interleaved"] = True
    if scaled:
        rope |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    theirs = rotary_type(
        config_type(hidden_size=256, num_attention_heads=2, head_dim=128, rope_parameters=rope,
                    max_position_embeddings=2048)
    )  # fmt: skip
    with torch.no_grad():
        expected = theirs(torch.zeros(1), torch.from_numpy(POSITIONS).permute(2, 0, 1))
    scaling = YarnScaling(factor=4.0, original_positions=512) if scaled else None
    rotation = backbone_rotary(backbone(sections, interleaved, rope_scaling=scaling), jnp.asarray(POSITIONS))
    for ours, published in zip((rotation.cos, rotation.sin), expected, strict=True):
        published = published.numpy()
        assert ours.shape == (2, 5, 1, 64)
        # Angles of thousands of radians in float32 differ in the fourth digit behind the point.
        np.testing.assert_allclose(ours[:, :, 0], published[..., :64], atol=4e-4)
        np.testing.assert_array_equal(published[..., :64], published[..., 64:])


@pytest.mark.parametrize("kind", KINDS)
def test_text_rotates_as_without_sections(kind):
    sections, interleaved = KINDS[kind][2:]
    config = backbone(sections, interleaved)
    without = dataclasses.replace(config, rope_sections=(), rope_interleaved=False)
    plain = backbone_rotary(without, jnp.asarray(POSITIONS[..., 0]))
    alike = backbone_rotary(config, jnp.asarray(POSITIONS[..., :1].repeat(3, axis=2)))
    for alike_part, plain_part in zip(alike[:2], plain[:2], strict=True):
        np.testing.assert_array_equal(alike_part, plain_part)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_sections": (8, 8)}, "three numbers of pairs"),
        ({"rope_sections": (8, 8, 8)}, "sum to half of the 32 channels of a head"),
        ({"rope_interleaved": True}, "give rope_sections"),
        ({"rope_sections": (4, 4, 8), "rope_interleaved": True}, "cannot be interleaved"),
        ({"rope_sections": (4, 4, 8), "positions": "learned"}, "need rotary positions"),
        ({"rope_sections": (4, 4, 8), "positions_per_second": -1.0}, "at least 0"),
        ({"bidirectional": "sometimes"}, "must be Literal"),
    ],
)
def test_configurations_that_fit_no_head_are_refused(fields, message):
    with pytest.raises((ValueError, UserError), match=message):
        BackboneConfig(**fields)
