"""Scaled rotary frequencies: each kind at both ends, by hand."""

import dataclasses

import numpy as np
import pytest

from configs.attention.rope import LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling, rotary_frequencies
from configs.modules.backbone import BackboneConfig

WIDTH, BASE = 128, 5e5


def test_linear_scaling_divides_all():
    np.testing.assert_allclose(LinearScaling(4.0).frequencies(WIDTH, BASE) * 4, rotary_frequencies(WIDTH, BASE))


@pytest.mark.parametrize("scaling", [Llama3Scaling(8.0), YarnScaling(factor=8.0, original_positions=8192)])
def test_high_frequencies_are_kept_and_low_ones_divided(scaling):
    plain, stretched = rotary_frequencies(WIDTH, BASE), scaling.frequencies(WIDTH, BASE)
    assert stretched[0] == plain[0]
    np.testing.assert_allclose(stretched[-1], plain[-1] / 8)
    ratio = plain / stretched
    assert np.all(np.diff(ratio) >= -1e-9) and ratio.min() == 1


def test_longrope_divides_each_pair_by_a_number_of_its_own():
    scaling = LongRopeScaling(short_factors=(1.0, 2.0), long_factors=(4.0, 8.0), original_positions=16, factor=4.0)
    plain = rotary_frequencies(4, BASE)
    np.testing.assert_allclose(scaling.frequencies(4, BASE), plain / [1, 2])
    np.testing.assert_allclose(dataclasses.replace(scaling, long=True).frequencies(4, BASE), plain / [4, 8])
    assert scaling.attention_scaling == pytest.approx(np.sqrt(1.5))
    with pytest.raises(ValueError, match="1 short_factors and 2 long_factors"):
        dataclasses.replace(scaling, short_factors=(1.0,))
    with pytest.raises(ValueError, match="rope_scaling has 2 factors; give one for each of the 4 pairs"):
        BackboneConfig(width=16, heads=2, rope_scaling=scaling)
    assert BackboneConfig(width=16, heads=2, rope_width=4, rope_scaling=scaling).rotary_width == 4


@pytest.mark.parametrize("options", [{"rope_width": 10}, {"rope_width": 4, "positions": "learned"}])
def test_only_channels_of_a_head_with_rotary_positions_rotate(options):
    with pytest.raises(ValueError, match="of heads 8 wide, and positions = "):
        BackboneConfig(width=16, heads=2, **options)


def test_yarn_sharpens_attention_by_the_papers_rule_by_default():
    assert YarnScaling(factor=1.0, original_positions=4096).attention_scaling == 1.0
    assert YarnScaling(factor=40.0, original_positions=4096).attention_scaling == pytest.approx(1.3689, abs=1e-4)
    assert YarnScaling(factor=40.0, original_positions=4096, attention_factor=1.0).attention_scaling == 1.0
    assert LinearScaling(2.0).attention_scaling == Llama3Scaling(2.0).attention_scaling == 1.0


@pytest.mark.parametrize(
    ("scaling", "field", "value"),
    [
        (LinearScaling(2.0), "factor", 0.0),
        (Llama3Scaling(8.0), "low_freq_factor", -1.0),
        (YarnScaling(factor=4.0, original_positions=64), "beta_fast", 0.0),
        (LongRopeScaling(short_factors=(1.0,), long_factors=(1.0,), original_positions=4, factor=2.0), "factor", -2.0),
    ],
)
def test_factors_that_are_not_above_zero_are_refused(scaling, field, value):
    with pytest.raises(ValueError, match=f"{type(scaling).__name__}.{field} is {value}"):
        dataclasses.replace(scaling, **{field: value})


@pytest.mark.parametrize(("field", "value"), [("rope_base", 0.0), ("local_rope_base", -1.0), ("norm_epsilon", -1e-5)])
def test_bases_and_epsilons_out_of_range_are_refused(field, value):
    with pytest.raises(ValueError, match=f"BackboneConfig.{field} is {value}"):
        BackboneConfig(**{field: value})
