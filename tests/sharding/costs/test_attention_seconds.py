"""Fused attention: published rates, the order by head width, and what short segments lose."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.clusters import CLUSTERS
from sharding.costs.attention_seconds import attention_arithmetic, attention_shares
from sharding.specs.layers.layer import ZERO, Kernel, PerLoad, make_loads


def attention(head_width, causal=False):
    flops = PerLoad(squared_lengths=2 * 1024 if causal else 4 * 1024)
    return Kernel("attention", "attention", flops, masked_flops=flops if causal else ZERO, head_width=head_width)


def rates(name, head_width, length, causal=False):
    """FLOP/s of forward and backward of eight segments."""
    loads, kernel = make_loads(8 * length, 8 * length**2, 1), attention(head_width, causal)
    forward, backward = attention_arithmetic(kernel, loads, CLUSTERS[name])
    return kernel.flops.evaluate(loads) / forward, 2.5 * kernel.flops.evaluate(loads) / backward


def test_long_segments_reach_the_published_rates():
    assert rates("a100", 128, 1 << 20) == pytest.approx((227e12, 196e12), rel=1e-3)
    assert rates("a100", 64, 1 << 20) == pytest.approx((192e12, 170e12), rel=1e-3)
    assert rates("h100", 128, 16_384)[0] == pytest.approx(621e12, rel=0.05)
    # What PyTorch's benchmark measures of FlashAttention-3's forward on an H100 (pytorch/benchmark, pull request 2391).
    for length, measured in ((1024, 517e12), (2048, 566e12), (4096, 590e12), (8192, 614e12)):
        assert rates("h100", 128, length)[0] == pytest.approx(measured, rel=0.12)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(["a100", "h100", "cpu"]), st.integers(1, 256), st.integers(1, 8192), st.booleans())
def test_attention_never_exceeds_the_peak_and_longer_segments_are_faster(name, width, length, causal):
    short, long = rates(name, width, length, causal), rates(name, width, 2 * length, causal)
    for way in range(2):
        assert 0 < short[way] <= long[way] <= CLUSTERS[name].peak_flops


@pytest.mark.parametrize("name", ["a100", "h100"])
def test_narrow_heads_take_as_long_as_wide_ones_for_the_same_scores(name):
    device = CLUSTERS[name].generation
    for way in range(2):
        shares = [attention_shares(device, width)[way] for width in (16, 32, 64, 96, 128, 256)]
        assert shares == sorted(shares)
    assert attention_shares(device, 32)[0] == pytest.approx(attention_shares(device, 64)[0] / 2)
    padded, whole = attention_shares(device, 80)[0], attention_shares(device, 96)[0]
    assert padded == pytest.approx(whole * 80 / 96)  # computed as 96


def test_loads_without_segments_have_no_blocks():
    forward, backward = attention_arithmetic(attention(64), np.zeros((3, 4)), CLUSTERS["a100"])
    assert not forward.any() and not backward.any()
