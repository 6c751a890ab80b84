"""Tables of config.json: their entries in both directions, and small published configurations that read back equal."""

import json
import types

import pytest

from mmjax.weights.published.key_table import EqualKeys, Fixed, Key, Nested, read_fields, write_table
from mmjax.weights.registry import read_architecture, write_architecture
from tests.mmjax.weights.published.small_checkpoints import DECODERS, TOWERS, WHOLE

CHANNELS = EqualKeys(("inputs", "outputs"), "channels", 4)
TABLE = (CHANNELS, Nested("tower", (Key("layers", "depth"), Fixed("act", "gelu", written=True))))
VAE = {
    **{"_class_name": "AutoencoderKL", "in_channels": 3, "out_channels": 3, "latent_channels": 6},
    **{"block_out_channels": [8, 16], "layers_per_block": 2, "norm_num_groups": 4, "shift_factor": 0.2},
    **{"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2},
    **{"use_quant_conv": False, "use_post_quant_conv": False},
}
UNET = {
    **{"_class_name": "UNet2DConditionModel", "in_channels": 4, "out_channels": 4, "block_out_channels": [32, 64]},
    **{"down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "layers_per_block": 1, "norm_num_groups": 8},
    **{"up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "attention_head_dim": 4, "cross_attention_dim": [32, 64]},
    **{"class_embed_type": "simple_projection", "projection_class_embeddings_input_dim": 12},
}
SMALL = {
    **{kind: {"model_type": kind, **values} for kind, (_, values) in {**DECODERS, **TOWERS, **WHOLE}.items()},
    "pixtral": {"model_type": "llava", **WHOLE["pixtral"][1]},
    "vae": VAE,
    "unet": UNET,
}


def test_keys_of_equal_values_are_one_field_and_an_object_has_entries_of_its_own():
    values = {"inputs": 8, "outputs": 8, "tower": {"layers": 3, "act": "gelu"}}
    assert read_fields(TABLE, values) == {"channels": 8, "depth": 3}
    assert write_table(TABLE, types.SimpleNamespace(channels=8, depth=3)) == values
    assert read_fields((CHANNELS,), {}) == {"channels": 4}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inputs": 8, "tower": {"layers": 3}}, "inputs is 8 and outputs is 4; only equal ones can be computed"),
        ({"tower": {"layers": 3, "act": "silu"}}, "tower.act is 'silu'; only 'gelu' can be computed"),
    ],
)
def test_what_cannot_be_computed_is_named_by_its_whole_key(values, message):
    with pytest.raises(ValueError, match=message):
        read_fields(TABLE, values)


@pytest.mark.parametrize("kind", SMALL)
def test_a_small_published_configuration_that_is_written_reads_back_equal(kind):
    architecture, config = read_architecture(SMALL[kind])
    values = json.loads(json.dumps(write_architecture(architecture, config)))
    again = read_architecture(values)
    assert again[0] is architecture
    assert write_architecture(*again) == values
