"""The shipped plan of a chain whose modules have unlike tensor-parallel sizes, and its layers unlike recomputation."""

import dataclasses
import os
import signal

import pytest

import mmjax
from mmjax.training.config import load_configured_plan
from sharding.plans.plan import single_device_plan
from sharding.specs.modules import module_graph
from tests.mmjax.training.trainer_runs import Recorder, run
from tests.small_vqa import SmallVQA

pytestmark = pytest.mark.layouts

CONFIG = dataclasses.replace(
    mmjax.load("tiny.gin", plan="plans/chain.json", steps=8), dataset=SmallVQA, log_interval=1, checkpoint_interval=2
)


def test_it_trains_to_the_losses_of_one_device_which_goes_on_with_its_checkpoint(tmp_path):
    (plan, remark), alone = load_configured_plan(CONFIG, 8), single_device_plan(module_graph(CONFIG.model))
    assert not remark
    (chain,) = plan.units
    assert chain.parallelism.module_tp == (1, 2, 1)
    assert [len(set(chain.layer_recompute(stage))) for stage in range(chain.stage_count)] == [2, 2]
    _, expected = run(tmp_path / "alone", alone, config=CONFIG)
    stopped = Recorder(at=1, then=lambda: os.kill(os.getpid(), signal.SIGTERM))
    result, _ = run(tmp_path / "chain", plan, recorder=stopped, config=CONFIG)
    assert result.stopped_by and result.step < CONFIG.steps
    _, resumed = run(tmp_path / "chain", alone, resume=True, config=CONFIG)
    assert len(expected) == 8 and stopped.losses and resumed and not set(stopped.losses) & set(resumed)
    losses = stopped.losses | resumed
    for step, step_losses in expected.items():
        assert losses[step] == pytest.approx(step_losses, rel=1e-4), step
