"""Runs of equal blocks: which have experts, and how they are named."""

import dataclasses

import pytest

from configs.architectures import BackboneConfig, ExpertsConfig


def backbone(depth: int, **experts: int) -> BackboneConfig:
    return BackboneConfig(depth=depth, experts=ExpertsConfig(**experts))


@pytest.mark.parametrize(
    ("config", "before", "expected"),
    [
        (BackboneConfig(depth=5), 0, [("blocks", 0, 5, False)]),
        (BackboneConfig(depth=5), 2, [("blocks", 2, 3, False)]),
        (backbone(5), 1, [("blocks", 1, 4, True)]),
        (backbone(5, dense_layers=2), 0, [("dense", 0, 2, False), ("blocks", 2, 3, True)]),
        (backbone(5, dense_layers=2), 1, [("dense", 1, 1, False), ("blocks", 2, 3, True)]),
        (backbone(5, dense_layers=2), 3, [("blocks", 3, 2, True)]),
        (
            backbone(5, interval=2),
            0,
            [
                ("dense", 0, 1, False),
                ("blocks", 1, 1, True),
                ("dense_1", 2, 1, False),
                ("blocks_1", 3, 1, True),
                ("dense_2", 4, 1, False),
            ],
        ),
        (
            backbone(6, interval=3, dense_layers=3),
            0,
            [("dense", 0, 5, False), ("blocks", 5, 1, True)],
        ),
    ],
)
def test_runs_of_equal_blocks(config, before, expected):
    assert [tuple(run) for run in config.block_runs(before)] == expected
    assert sum(run.count for run in config.block_runs(before)) == config.depth - before


@pytest.mark.parametrize("dense_layers", range(4))
@pytest.mark.parametrize("interval", range(1, 5))
def test_a_shallower_backbone_has_some_experts_too(dense_layers, interval):
    config = backbone(8, dense_layers=dense_layers, interval=interval)
    for depth in range(1, 9):
        shallow = config.with_depth(depth)
        assert shallow.depth == depth and shallow.layers_with_experts
    assert config.with_depth(8) == config


def test_a_backbone_without_any_experts_is_refused():
    for experts in (ExpertsConfig(dense_layers=2), ExpertsConfig(interval=3)):
        with pytest.raises(ValueError, match="no block of depth = 2 has experts"):
            dataclasses.replace(BackboneConfig(depth=2), experts=experts)
