"""Windows of an encoder of another depth."""

import pytest

from configs.attention.attention_windows import AttentionWindows
from configs.modules.encoders import VisionConfig


@pytest.mark.parametrize(
    ("full", "depth", "other_depth", "expected"),
    [
        ((7, 15, 23, 31), 32, 32, (7, 15, 23, 31)),
        ((7, 15, 23, 31), 32, 16, (7, 15)),
        ((7, 15, 23, 31), 32, 2, (1,)),
        ((7, 15, 23, 31), 32, 1, (0,)),
        ((0, 1), 2, 4, (0, 1, 2, 3)),
        ((0, 1, 2), 4, 2, (1,)),
        ((), 4, 2, ()),
    ],
)
def test_an_encoder_of_another_depth_has_about_the_same_share_of_full_layers(full, depth, other_depth, expected):
    encoder = VisionConfig(depth=depth, windows=AttentionWindows(4, full_layers=full))
    assert encoder.with_depth(other_depth).windows == AttentionWindows(4, full_layers=expected)
