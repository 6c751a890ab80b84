"""`benchmarks.colocated.step_flops`: a colocated step computes no more than the same model on separate submeshes."""

import dataclasses

import pytest

from benchmarks.colocated.executed_work import GOAL
from benchmarks.colocated.step_flops import DEVICES, colocated_plan, separate_plan, small_configuration, step_flops


@pytest.mark.layouts
def test_colocated_steps_compute_no_more():
    config, batch = small_configuration()
    model = config.model
    (encoder,) = model.encoders
    backbone = dataclasses.replace(model.backbone, depth=2)
    small = dataclasses.replace(model, encoders=(dataclasses.replace(encoder, depth=1),), backbone=backbone)
    config = dataclasses.replace(config, model=small)
    colocated, separate = colocated_plan(config), separate_plan(config)
    assert colocated.device_count == separate.device_count == DEVICES
    counted = [step_flops(config, plan, batch) for plan in (colocated, separate)]
    assert 0.8 < counted[0] / counted[1] <= GOAL
