"""The shipped colocated plan of the quickstart:

pipeline replicas and bundles train as one device does, and are recorded.
"""

import collections
import dataclasses

import pytest

import mmjax
from mmjax.training.config import load_configured_plan
from mmjax.training.trainer import Trainer
from sharding.plans.plan import single_device_plan
from sharding.runtime.bundled_ops import find_bundles
from sharding.specs.modules import module_graph
from tests.mmjax.training.measured_steps import check_measured
from tests.small_vqa import SmallVQA

pytestmark = pytest.mark.layouts

CONFIG = dataclasses.replace(
    mmjax.load("quickstart.gin", plan="plans/quickstart_colocated.json", steps=4), dataset=SmallVQA
)


@pytest.fixture(scope="module")
def steps():
    """The first steps on one device, and a trainer of the plan."""
    with Trainer(CONFIG, single_device_plan(module_graph(CONFIG.model))) as alone:
        expected = [alone.step() for _ in range(2)]
    plan, remark = load_configured_plan(CONFIG, 8)
    assert not remark
    with Trainer(CONFIG, plan) as trainer:
        yield expected, trainer


def test_it_has_copies_beside_the_backbone_and_bundles_of_every_kind(steps):
    _, trainer = steps
    units = trainer.engine.plan.units
    assert [(unit.name, unit.parallelism.pipeline_replicas, unit.parallelism.chunks) for unit in units] == [
        ("vision", 2, 2),
        ("backbone", 1, 1),
        ("generator", 4, 1),
    ]
    assert {unit.devices for unit in units} == {range(8)}
    kinds = collections.Counter((first.kind, second.kind) for first, second in find_bundles(trainer.engine.schedule))
    assert kinds == {
        ("forward", "forward"): 3,
        ("forward", "backward"): 1,
        ("backward", "forward"): 1,
        ("backward", "backward"): 3,
        ("reduce", "backward"): 2,
    }


def test_it_trains_to_the_losses_of_one_device_and_its_recording_has_every_op(steps):
    expected, trainer = steps
    for step in expected:
        actual = trainer.step()
        assert actual.losses == pytest.approx(step.losses, rel=1e-4), step.step
        assert actual.gradient_norm == pytest.approx(step.gradient_norm, rel=1e-4), step.step
    timeline = trainer.timeline()
    check_measured(timeline, trainer.engine.schedule)
    lanes = [
        (lane.rank, lane.pipeline_replica, lane.pipeline_replicas, sorted(lane.devices)) for lane in timeline.lanes
    ]
    first, last = [0, 1, 2, 3], [4, 5, 6, 7]
    assert lanes == [
        (("vision", 0), 0, 2, first),
        (("vision", 1), 1, 2, last),
        (("backbone", 0), 0, 1, first),
        (("backbone", 1), 0, 1, last),
        *(
            (("generator", pipeline_replica), pipeline_replica, 4, [2 * pipeline_replica, 2 * pipeline_replica + 1])
            for pipeline_replica in range(4)
        ),
    ]
    beside = {span.op for span in timeline.spans if span.beside is not None}
    assert beside == {op for bundle in find_bundles(trainer.engine.schedule) for op in bundle}
