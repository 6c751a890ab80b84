"""Costs of gradients of weights that are an op of their own.

`plan_costs` computes these costs for the schedules that split backwards.
"""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float

from sharding.costs.batch_costs import ReplicaLoads
from sharding.costs.cost_model import CostModel
from sharding.costs.memory import wgrad_operand_bytes
from sharding.costs.stages.shared_replicas import finest_replicas
from sharding.costs.stages.stage_parameters import LayersOfStage
from sharding.costs.step_costs import WgradCosts
from sharding.plans.unit_plan import UnitPlan


def without_wgrads(layers: tuple[LayersOfStage, ...]) -> tuple[LayersOfStage, ...]:
    """The layers of a stage, computing only what is sent back."""
    return tuple(run._replace(gradients=tuple(name for name in run.gradients if name == "dgrad")) for run in layers)


def wgrad_costs(
    layers: tuple[LayersOfStage, ...],
    unit: UnitPlan,
    whole: Mapping[str, Float[np.ndarray, "m _"]],
    sent_back: Mapping[str, Float[np.ndarray, "m _"]],
    loads: Callable[[str, int], ReplicaLoads],
    costs: CostModel,
) -> WgradCosts:
    """Returns the seconds of a stage's wgrad, as its share of the backward, and the bytes saved for it.

    Args:
        layers: The stage's layers.
        unit: Its unit.
        whole: The fields `PER_MICROBATCH` of these layers.
        sent_back: The same fields without their wgrads (`without_wgrads`).
        loads: The loads of a module's replicas, by the module and their number.
        costs: The cost model.
    """
    saved: dict[str, np.ndarray] = {}
    for run in layers:
        if "wgrad" in run.gradients:
            replicas = loads(run.module, run.ranks.dp)
            operand_bytes = wgrad_operand_bytes(run.layer, replicas.distinct, run.ranks, run.recompute, costs)
            saved[run.module] = saved.get(run.module, 0.0) + run.count * np.asarray(operand_bytes)[replicas.index]
    if unit.parallelism.module_tp:
        saved = {module: held[:, finest_replicas(unit)[module]] for module, held in saved.items()}
    zero = np.zeros_like(whole["saved_bytes"])
    return WgradCosts(
        np.maximum(whole["backward"] - sent_back["backward"], 0.0),
        sum((np.broadcast_to(held, zero.shape) for held in saved.values()), start=zero),
    )
