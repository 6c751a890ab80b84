"""Rows are ordered by the costs of the run's devices: its profile, the cluster of its plan, or the kind of device."""

import dataclasses

import pytest

from configs.clusters import CLUSTERS
from data.data_config import DataConfig
from mmjax.training.batches import row_order_request
from mmjax.training.config import TrainConfig
from sharding.plans.plan import single_device_plan
from sharding.plans.plan_purpose import PlanPurpose
from sharding.specs.modules import module_graph
from tests.profiles import synthetic_profile
from tests.small_vqa import SmallVQA
from tests.tiny_model import tiny_model

MODEL = tiny_model(vocabulary=48)
CONFIG = TrainConfig(
    dataset=SmallVQA, model=MODEL, data=DataConfig(rows=8, tokens=160, patches=32), reordering="search"
)
PLAN = single_device_plan(module_graph(MODEL), 2)
MADE_FOR_TOY = dataclasses.replace(
    PLAN,
    made_for=PlanPurpose(
        cluster="toy", described_cluster=dataclasses.replace(CLUSTERS["h100"], name="toy", device_kinds=("NVIDIA H1",))
    ),
)


@pytest.mark.parametrize(
    ("plan", "device_kind", "cluster"),
    [
        (PLAN, "NVIDIA H100 80GB HBM3", "h100"),
        (PLAN, "NVIDIA T4", "cpu"),
        (MADE_FOR_TOY, "NVIDIA H100 80GB HBM3", "toy"),
        (MADE_FOR_TOY, "NVIDIA T4", "toy"),
        (MADE_FOR_TOY, "cpu", "cpu"),
    ],
)
def test_a_described_cluster_counts_unless_its_plan_runs_on_the_devices_of_another(plan, device_kind, cluster):
    assert row_order_request(CONFIG, plan, device_kind).cluster == cluster


def test_the_measurements_of_the_plans_ranks_go_along():
    profile = synthetic_profile(module_graph(MODEL), "cpu")
    request = row_order_request(CONFIG, PLAN, "cpu", profile)
    assert {entry.tp for entry in request.profile.layers} == {1} < {entry.tp for entry in profile.layers}
    assert row_order_request(CONFIG, PLAN, "cpu").profile is None
    assert row_order_request(dataclasses.replace(CONFIG, reordering="none"), PLAN, "cpu", profile) is None


def test_hops_between_processes_occupy_both_their_ends():
    assert [row_order_request(CONFIG, PLAN, "cpu", processes=count).rendezvous for count in (1, 2)] == [False, True]
