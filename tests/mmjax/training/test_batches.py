"""Rows are ordered by the costs of the run's devices: its profile, the cluster of its plan, or the kind of device."""

import dataclasses
import json

import pytest

from configs.clusters import CLUSTERS
from data.data_config import DataConfig
from data.errors import DataError
from data.packing.row_order import MAX_PROFILE_BYTES
from data.samples.sample_format import SampleFormat
from mmjax.training.batches import row_order_request
from mmjax.training.config import TrainConfig
from sharding.plans.plan import Plan, single_device_plan
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


def made_for_toy(*device_kinds: str) -> Plan:
    """The plan, made for a described cluster whose devices are of these kinds."""
    described = dataclasses.replace(CLUSTERS["h100"], name="toy", device_kinds=device_kinds)
    return dataclasses.replace(PLAN, made_for=PlanPurpose(cluster="toy", described_cluster=described))


MADE_FOR_TOY, MADE_FOR_ANY = made_for_toy("NVIDIA H1"), made_for_toy()


@pytest.mark.parametrize(
    ("plan", "device_kind", "cluster"),
    [
        (PLAN, "NVIDIA H100 80GB HBM3", "h100"),
        (PLAN, "NVIDIA T4", "cpu"),
        (MADE_FOR_TOY, "NVIDIA H100 80GB HBM3", "toy"),
        (MADE_FOR_TOY, "NVIDIA T4", "toy"),
        (MADE_FOR_TOY, "cpu", "cpu"),
        (MADE_FOR_ANY, "NVIDIA H100 80GB HBM3", "toy"),
        (MADE_FOR_ANY, "NVIDIA T4", "toy"),
        (MADE_FOR_ANY, "cpu", "toy"),
    ],
)
def test_a_described_cluster_counts_unless_it_names_devices_and_these_are_others(plan, device_kind, cluster):
    assert row_order_request(CONFIG, plan, device_kind).cluster == cluster


def test_the_measurements_of_the_plans_ranks_go_along():
    profile = synthetic_profile(module_graph(MODEL), "cpu")
    request = row_order_request(CONFIG, PLAN, "cpu", profile)
    assert {entry.tp for entry in request.profile.layers} == {1} < {entry.tp for entry in profile.layers}
    assert row_order_request(CONFIG, PLAN, "cpu").profile is None
    assert row_order_request(dataclasses.replace(CONFIG, reordering="none"), PLAN, "cpu", profile) is None


def test_a_profile_may_be_as_large_as_it_is_unless_producers_order_the_rows():
    profile = synthetic_profile(module_graph(MODEL), "cpu")
    large = dataclasses.replace(profile, layers=profile.layers * 500)
    request = row_order_request(CONFIG, PLAN, "cpu", large)
    assert len(json.dumps(request.profile.to_json())) > MAX_PROFILE_BYTES
    sample_format = SampleFormat.for_model(MODEL, CONFIG.data.encoder_capacities)
    assert request.make_row_order(MODEL, sample_format).reorderer.costs.profile == request.profile
    remote = dataclasses.replace(CONFIG, producers=("localhost:1",))
    assert row_order_request(remote, PLAN, "cpu", profile).profile is not None
    with pytest.raises(DataError, match=f"TrainConfig.producers has room for {MAX_PROFILE_BYTES}: measure fewer"):
        row_order_request(remote, PLAN, "cpu", large)


def test_hops_between_processes_occupy_both_their_ends():
    assert [row_order_request(CONFIG, PLAN, "cpu", processes=count).rendezvous for count in (1, 2)] == [False, True]
