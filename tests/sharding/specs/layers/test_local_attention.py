"""Pairs of local attention against masks counted pair by pair, and runs of local and global layers."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.architectures import AudioConfig, BackboneConfig, ModelConfig, VisionConfig
from configs.attention.attention_windows import AttentionWindows
from sharding.specs.layers.layer import PerLoad, make_loads
from sharding.specs.layers.local_attention import LocalAttention
from sharding.specs.modules import module_graph
from tests.filled_row_loads import pairs_of_image

sides = st.integers(1, 9)


def visible(local, places):
    """Pairs that attend, of positions at these places: of shape [n], or [n, 2] in an image."""
    if local.kind == "window":
        behind = places[:, None] - places
        return int(((behind >= 0) & (behind < local.size)).sum())
    parts = places // local.size
    same = parts[:, None] == parts
    same = np.tril(same) if local.kind == "causal_chunk" else same
    return int((same.all(axis=-1) if places.ndim == 2 else same).sum())


@given(st.sampled_from(["window", "chunk", "causal_chunk"]), st.integers(1, 12), st.integers(0, 40))
def test_pairs_of_a_sequence_are_those_of_the_mask(kind, size, length):
    local = LocalAttention(kind, size)
    assert local.pairs(length) == visible(local, np.arange(length))


@given(st.integers(1, 5), sides, sides)
def test_pairs_of_an_image_are_those_of_the_mask(size, rows, columns):
    local = LocalAttention("square", size)
    places = np.stack(np.divmod(np.arange(rows * columns), columns), axis=1)
    assert pairs_of_image(size, rows, columns) == visible(local, places)
    assert local.pairs(rows**2) == pairs_of_image(size, rows, rows)


BACKBONE = BackboneConfig(depth=8, attention_pattern=("local", "local", "global"), attention_window=4)
CHUNKED = BackboneConfig(depth=8, attention_pattern=("chunked", "chunked", "unrotated"), attention_chunk=4)
VISION = VisionConfig(depth=6, merge=2, windows=AttentionWindows(4, full_layers=(2, 5)))


def attention_flops(module, first, last, loads):
    """FLOPs of attention in the layers of a stage."""
    kernels = (
        kernel.flops * count
        for layer, count in module.layers_between(first, last)
        for kernel in layer.kernels
        if kernel.kind == "attention"
    )
    return float(sum(kernels, start=PerLoad()).evaluate(loads))


@pytest.mark.parametrize("cut", range(1, 8))
@pytest.mark.parametrize(
    ("config", "pairs"), [(BACKBONE, 4 * 5 / 2 + 16 * 4), (CHUNKED, 5 * 4 * 5 / 2)], ids=["windows", "chunks"]
)
def test_a_stage_has_the_local_and_the_global_layers_that_it_is_cut_to(cut, config, pairs):
    module = module_graph(ModelConfig((), config, ()))["backbone"]
    assert module.local is not None
    loads = make_loads(20, 20**2, 1, module.local.pairs(20))
    width = config.query_width
    per_local, per_global = 4 * width * pairs, 2 * width * 20**2
    is_local = [BACKBONE.attention_pattern[layer % 3] == "local" for layer in range(8)]
    for first, last in ((0, cut), (cut, 8)):
        count = sum(is_local[first:last])
        expected = count * per_local + (last - first - count) * per_global
        assert attention_flops(module, first, last, loads) == expected


def test_layers_of_encoders_attend_to_windows_or_chunks():
    graph = module_graph(ModelConfig((VISION, AudioConfig(chunk=10)), BackboneConfig(), ()))
    loads = make_loads(64, 64**2, 1, LocalAttention("square", 4).pairs(64))
    one = 4 * VISION.width
    assert attention_flops(graph["vision"], 0, 3, loads) == one * (2 * 64 * 16 + 64**2)
    assert [count for _, count in graph["vision"].stack] == [2, 1, 2, 1]
    assert graph["audio"].local == LocalAttention("chunk", 10)
    assert {kernel.flops.squared_lengths for layer, _ in graph["audio"].stack for kernel in layer.kernels} == {0}


def test_a_window_longer_than_every_item_costs_what_global_attention_does_but_for_the_diagonal():
    whole = dataclasses.replace(BACKBONE, attention_pattern=("local",), attention_window=100)
    plain = dataclasses.replace(BACKBONE, attention_pattern=("global",), attention_window=0)
    local, plain = (module_graph(ModelConfig((), config, ()))["backbone"] for config in (whole, plain))
    loads = make_loads(50, 50**2, 1, LocalAttention("window", 100).pairs(50))
    difference = attention_flops(local, 0, 8, loads) - attention_flops(plain, 0, 8, loads)
    assert difference == 8 * 2 * BACKBONE.query_width * 50
