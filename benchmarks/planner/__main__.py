"""`python -m benchmarks.planner`: how fast the planner is, how near to the optimum, and DistTrain's models simulated.

Each row has a name, a value, a goal, whether it is met, and the paper's figure (arXiv 2408.04275).
"""

import json

from absl import flags

from benchmarks.rows import every_goal_met, print_table
from mmjax import cli

_JSON = flags.DEFINE_bool("json", False, "Print one JSON document instead of tables.")
_MODELS = flags.DEFINE_list("models", ["mllm_9b", "mllm_15b", "mllm_72b"], "Models of configs/models to simulate.")

DATA = "data/laion_like.gin"


def main() -> int:
    """Prints the table. Returns 0 if every goal is met, else 1."""
    from benchmarks.planner.disttrain_models import explain_difference, simulate_model
    from benchmarks.planner.speed import measure_speed
    from benchmarks.rows import package_versions
    from configs.architectures import ModelConfig
    from configs.workloads import SyntheticData

    described = {}
    for name in dict.fromkeys((*_MODELS.value, "mllm_72b")):
        cli.parse_gin(f"models/{name}.gin", DATA)
        described[name] = (cli.configured(ModelConfig), cli.configured(SyntheticData))
    rows = measure_speed(*described["mllm_72b"])
    for name in _MODELS.value:
        rows += simulate_model(name, *described[name])
    rows += explain_difference("mllm_72b", *described["mllm_72b"])
    if _JSON.value:
        print(json.dumps({"rows": rows, "versions": package_versions()}))
    else:
        print_table(rows, comparison_key="paper", digits=4)
    return 0 if every_goal_met(rows) else 1


if __name__ == "__main__":
    cli.run(main)
