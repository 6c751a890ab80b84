import dataclasses

import pytest

import mmjax
from configs.clusters import CLUSTERS, ClusterConfig, Link
from configs.common.errors import UserError
from configs.device_generations import AMPERE, BLACKWELL, H20, HOPPER
from mmjax.planning.arguments import ProblemArguments
from mmjax.planning.problem_inputs import read_problem
from sharding.plans.plan_purpose import PlanPurpose, differences

TEXT = """from __gin__ import dynamic_registration
from configs import clusters
from configs import device_generations

clusters.ClusterConfig:
  name = "mine"
  peak_flops = 100e12
  memory = 24e9
  memory_bandwidth = 1e12
  devices_per_node = 4
  intra_node = @inside/clusters.Link()
  inter_node = @between/clusters.Link()
  generation = @device_generations.hopper()
  host_link = @host/clusters.Link()
  host_memory = 250e9

inside/clusters.Link:
  bandwidth = 32e9
  latency = 5e-6
between/clusters.Link:
  bandwidth = 10e9
  latency = 2e-5
host/clusters.Link:
  bandwidth = 16e9
  latency = 1e-5
"""
MINE = ClusterConfig(
    name="mine",
    peak_flops=100e12,
    memory=24e9,
    memory_bandwidth=1e12,
    devices_per_node=4,
    intra_node=Link(32e9, 5e-6),
    inter_node=Link(10e9, 2e-5),
    generation=HOPPER,
    host_link=Link(16e9, 1e-5),
    host_memory=250e9,
)


def read(tmp_path, text: str = TEXT, made_for: PlanPurpose | None = None, **given: object):
    path = tmp_path / "mine.gin"
    path.write_text(text)
    arguments = {"gin_file": ("models/mllm_9b.gin",), "cluster": str(path)} | given
    return read_problem(ProblemArguments(**arguments), made_for)


def test_a_plan_does_not_name_the_secrets_of_its_configuration(tmp_path):
    bindings = ("LOGIN_TOKEN =  's3cr3t'", "architectures.BackboneConfig.name = %LOGIN_TOKEN")
    named = read(tmp_path, gin=bindings).configuration.gin
    assert named == ("LOGIN_TOKEN = '(hidden)'", bindings[1])
    assert read(tmp_path).configuration.gin == ()


def test_a_gin_file_describes_a_cluster(tmp_path):
    inputs = read(tmp_path)
    assert inputs.cluster == MINE
    assert inputs.configuration.gin_file == ("models/mllm_9b.gin",)


def test_a_cluster_without_offloading_needs_no_host(tmp_path):
    text = TEXT.replace("  host_link = @host/clusters.Link()\n  host_memory = 250e9\n", "")
    assert read(tmp_path, text).cluster == dataclasses.replace(MINE, host_link=None, host_memory=0)


@pytest.mark.parametrize(
    ("name", "generation"), [("ampere", AMPERE), ("hopper", HOPPER), ("h20", H20), ("blackwell", BLACKWELL)]
)
def test_every_generation_can_be_bound(name, generation, tmp_path):
    text = TEXT.replace("device_generations.hopper()", f"device_generations.{name}()")
    assert read(tmp_path, text).cluster == dataclasses.replace(MINE, generation=generation)


def test_bindings_describe_a_cluster_and_change_one(tmp_path):
    assert read(tmp_path, gin=("ClusterConfig.memory = 48e9",)).cluster == dataclasses.replace(MINE, memory=48e9)
    both = ("models/mllm_9b.gin", str(tmp_path / "mine.gin"))
    assert read(tmp_path, gin_file=both, cluster="").cluster == MINE
    with pytest.raises(UserError, match="--cluster=h100 is one cluster, and the configuration binds"):
        read(tmp_path, gin_file=both, cluster="h100")


def test_the_shipped_description_is_the_a800_with_other_links(tmp_path):
    shipped = read(tmp_path, cluster="disttrain_a800").cluster
    links = {"intra_node": shipped.intra_node, "inter_node": shipped.inter_node}
    assert shipped == dataclasses.replace(CLUSTERS["a800"], name="disttrain_a800", device_kinds=(), **links)
    assert (shipped.intra_node.bandwidth, shipped.inter_node.bandwidth) == (300e9 / 2, 4 * 200e9 / 8 / 8)


@pytest.mark.parametrize(
    ("text", "edited", "message"),
    [
        ("  memory = 24e9\n", "", r"mine.gin, line 5: ClusterConfig lacks memory; bind a value to each"),
        ("  memory = 24e9", "  memories = 24e9", r"mine.gin, line 8: ClusterConfig has no parameter memories"),
        ("24e9", "24.0", r"line 5: ClusterConfig.memory is 24.0; it is in bytes: 80 GB are 80e9"),
        ("100e12", "100.0", r"ClusterConfig.peak_flops is 100.0; it is in FLOP/s: 312 TFLOP/s are 312e12"),
        ("32e9", "32.0", r"the bandwidth of ClusterConfig.intra_node is 32.0; it is in bytes per second"),
        ("2e-5", "20.0", r"the latency of ClusterConfig.inter_node is 20.0; it is in seconds"),
        ("32e9", "-32e9", r"Link: bandwidth -32000000000.0 must be positive"),
        ("32e9", "'fast'", r"Link.bandwidth is 'fast'; it must be a number"),
        ("16e9", "32.0", r"the bandwidth of ClusterConfig.host_link is 32.0; it is in bytes per second"),
        ("250e9", "250", r"ClusterConfig.host_memory is 250; it is in bytes: 250 GB are 250e9"),
        ("latency = 1e-5", "latency = 10", r"the latency of ClusterConfig.host_link is 10; it is in seconds"),
        ('"mine"', '""', r"line 5: ClusterConfig.name is ''; give the cluster a name of its own"),
        ('"mine"', '" "', r"ClusterConfig.name is ' '; give the cluster a name of its own"),
        ('"mine"', '"h100"', r"ClusterConfig.name is 'h100', a cluster of mmjax; choose another"),
        (TEXT, "from __gin__ import dynamic_registration\n", r"mine.gin describes no cluster"),
    ],
)
def test_a_description_with_a_mistake_is_refused_with_its_place(text, edited, message, tmp_path):
    assert text in TEXT
    with pytest.raises(UserError, match=message):
        read(tmp_path, TEXT.replace(text, edited))


def test_a_plan_brings_the_cluster_that_it_was_made_for(tmp_path):
    made_for = PlanPurpose(cluster="mine", described_cluster=MINE)
    assert read(tmp_path, TEXT, made_for, cluster="").cluster == MINE
    slower = read(tmp_path, TEXT.replace("32e9", "16e9"), made_for)
    assert slower.cluster.intra_node.bandwidth == 16e9
    here = PlanPurpose(cluster="mine", described_cluster=slower.cluster)
    assert differences(made_for, here) == ["bandwidth of intra_node of cluster mine 32000000000.0 (here 16000000000.0)"]
    assert read(tmp_path, TEXT, made_for, cluster="h100").cluster is CLUSTERS["h100"]


def test_the_interface_takes_the_file_of_a_cluster_and_simulates_its_plan_again(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(TEXT)
    made = mmjax.plan("models/llava_1_6_7b.gin", cluster=str(path), devices=32, rows=32, policy="disaggregated")
    made.plan.save(tmp_path / "plan.json")
    assert made.plan.made_for.described_cluster == MINE
    assert mmjax.simulate(tmp_path / "plan.json").step == made.timeline.step
