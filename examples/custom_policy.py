"""A planning policy of your own: the whole model on every device, with data parallelism alone.

    python examples/custom_policy.py

compares it with the built-in policies. For the commands, in the folder of this file (copy it and custom_policy.gin):

    python -m mmjax.plan --gin_file=custom_policy.gin --devices=8
    python -m mmjax.plan --gin_file=custom_policy.gin --devices=8 --policy=replicated
"""

import mmjax
from sharding.planners.problem import PlanningProblem
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan


def replicated(problem: PlanningProblem) -> list[Plan]:
    """A plan for each recomputation policy: one row a replica and microbatch, every module on every device."""
    if problem.rows % problem.devices:
        raise PlanError(f"{problem.rows} rows cannot be divided over {problem.devices} replicas")
    devices = tuple(range(problem.devices))
    return [
        Plan(
            tuple(
                UnitPlan(
                    module.name,
                    (module.name,),
                    devices,
                    layers=(module.layer_count,),
                    recompute=(recompute,),
                    parallelism=Parallelism(dp=problem.devices),
                )
                for module in problem.graph.modules
            ),
            microbatches=problem.rows // problem.devices,
        )
        for recompute in problem.recompute_choices
    ]


mmjax.register_policy("replicated", replicated)


def main() -> None:
    """Prints every policy's plan for a 7B model on one node."""
    comparison = mmjax.plan("models/llava_1_6_7b.gin", cluster="a800", devices=8, rows=64)
    for result in comparison.results:
        print(result.policy, f"{result.timeline.step:.2f} s a step" if result.simulated else result.reason)
    print("chosen:", comparison.choice.policy)


if __name__ == "__main__":
    main()
