"""The problems whose plans are edited: five models on four clusters; long rows, a slow network, few rows."""

import dataclasses

from configs.architectures import ModelConfig
from configs.clusters import ClusterConfig, Link, find_cluster
from configs.workloads import SyntheticData, Workload
from mmjax import cli
from mmjax.planning.problem import default_data_file, make_problem, workload_statistics
from sharding.planners.problem import PlanningProblem

SLOW_NETWORK = Link(1e9, 10e-6)
"""A device's share of the network between the nodes of the cluster `SLOW`: 1 GB/s."""

SLOW = "slow"
"""H100s with `SLOW_NETWORK`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemSize:
    """What a problem is made of.

    Attributes:
        model: A model of configs/models.
        cluster: A cluster of configs/clusters.py, or `SLOW`.
        devices: Number of devices.
        rows: Rows of the global batch.
        row_tokens: Backbone tokens of a row; 0 for what the described data of the model have.
    """

    model: str
    cluster: str
    devices: int
    rows: int
    row_tokens: int = 0


PROBLEMS = {
    "mllm_9b": ProblemSize(model="mllm_9b", cluster="a100", devices=96, rows=128),
    "mllm_9b_few_rows": ProblemSize(model="mllm_9b", cluster="h100", devices=64, rows=16),
    "mllm_9b_slow_network": ProblemSize(model="mllm_9b", cluster=SLOW, devices=64, rows=128),
    "mllm_72b": ProblemSize(model="mllm_72b", cluster="h100", devices=128, rows=128),
    "mllm_72b_few_rows": ProblemSize(model="mllm_72b", cluster="a100", devices=96, rows=40),
    "internvit_6b_llama3_8b": ProblemSize(model="internvit_6b_llama3_8b", cluster="h100", devices=64, rows=128),
    "internvit_6b_llama3_8b_slow_network": ProblemSize(
        model="internvit_6b_llama3_8b", cluster=SLOW, devices=64, rows=128
    ),
    "qwen3_vl_30b_a3b": ProblemSize(model="qwen3_vl_30b_a3b", cluster="h200", devices=64, rows=128),
    "qwen3_vl_30b_a3b_long_rows": ProblemSize(
        model="qwen3_vl_30b_a3b", cluster="h100", devices=64, rows=32, row_tokens=32768
    ),
    "qwen3_vl_30b_a3b_slow_network": ProblemSize(model="qwen3_vl_30b_a3b", cluster=SLOW, devices=64, rows=64),
    "vit_22b_gpt_175b": ProblemSize(model="vit_22b_gpt_175b", cluster="h100", devices=192, rows=96),
    "vit_22b_gpt_175b_long_rows": ProblemSize(
        model="vit_22b_gpt_175b", cluster="h200", devices=128, rows=32, row_tokens=16384
    ),
}
"""The problems by name."""


def edited_problem(size: ProblemSize) -> PlanningProblem:
    """Makes a problem as `python -m mmjax.plan` would of the model's described data; all parts train."""
    cli.parse_gin((f"models/{size.model}.gin",))
    data_file = default_data_file(cli.configured(ModelConfig))
    cli.parse_gin((f"models/{size.model}.gin", f"data/{data_file}.gin"))
    data = cli.configured(SyntheticData)
    if size.row_tokens:
        data = dataclasses.replace(data, row_tokens=size.row_tokens)
    workload = Workload(cli.configured(ModelConfig), data, size.rows)
    return make_problem(workload, workload_statistics(workload), _cluster(size.cluster), size.devices)


def _cluster(name: str) -> ClusterConfig:
    if name == SLOW:
        return dataclasses.replace(find_cluster("h100"), name=SLOW, inter_node=SLOW_NETWORK)
    return find_cluster(name)
