"""Loads of the rows of a run, as planners count them."""

import dataclasses

import numpy as np
import pytest

from configs.architectures import ModelConfig
from sharding.specs.layers.layer import LoadColumn
from sharding.specs.modules import module_graph
from tests.filled_row_loads import filled_row_loads
from tests.tiny_model import BACKBONE, VISION


@pytest.mark.parametrize("class_token", [False, True])
def test_a_class_token_attends_as_one_position_and_takes_a_cell(class_token):
    vision = dataclasses.replace(VISION, class_token=class_token)
    segments = np.array([[1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0], [0] * 12])  # a cell is 2 x 2 positions
    if class_token:
        segments[0, 4] = 1
    graph = module_graph(ModelConfig((vision,), BACKBONE, ()))
    arrays = {"vision": {"segments": segments}, "backbone": {"segments": np.zeros((2, 4), int)}}
    loads = filled_row_loads(arrays, graph)["vision"]
    assert loads[0].tolist() == ([8.0, 25.0, 1.0, 0.0] if class_token else [4.0, 16.0, 1.0, 0.0]) and not loads[1].any()
    assert loads[0, LoadColumn.TOKENS] % graph["vision"].values_per_slot == 0
