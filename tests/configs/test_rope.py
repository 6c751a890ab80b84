"""Scaled rotary frequencies: each kind at both ends, by hand."""

import numpy as np
import pytest

from configs.rope import LinearScaling, Llama3Scaling, YarnScaling, rotary_frequencies

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


def test_yarn_sharpens_attention_by_the_papers_rule_by_default():
    assert YarnScaling(factor=1.0, original_positions=4096).attention_scaling == 1.0
    assert YarnScaling(factor=40.0, original_positions=4096).attention_scaling == pytest.approx(1.3689, abs=1e-4)
    assert YarnScaling(factor=40.0, original_positions=4096, attention_factor=1.0).attention_scaling == 1.0
    assert LinearScaling(2.0).attention_scaling == Llama3Scaling(2.0).attention_scaling == 1.0
