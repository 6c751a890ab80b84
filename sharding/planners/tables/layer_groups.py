"""Costs of a module's groups of layers: the leading ones, one layer of each kind of the stack, the trailing ones.

`tabulate.py` sums these costs over the stages of every candidate.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.costs.cost_model import CostModel, LayerParallelism, LayerSeconds, beside_transfer
from sharding.costs.memory import offloaded_bytes, saved_activation_bytes, workspace_bytes
from sharding.planners.tables.fixed_ranks import FixedRanks
from sharding.plans.resolved.trained_parts import LayerGradients, RequiredGradients
from sharding.specs.layers.layer import LayerSpec, Loads, RecomputePolicy
from sharding.specs.layers.module_spec import ModuleSpec


class LayerGroupCosts(NamedTuple):
    """Costs of a group of layers on one tensor rank.

    Attributes:
        seconds: Forward and backward, by the rows of a replica's microbatch.
        parameters: Elements of parameters `[4]`: all but experts', the trained ones of these, experts', the trained
            ones of these.
        saved: Bytes saved per row: mean, standard deviation and maximum over rows.
        workspace: Bytes that are there while the layer that needs most of them runs, in the same form.
    """

    seconds: Float[np.ndarray, " k"]
    parameters: Float[np.ndarray, " 4"]
    saved: Float[np.ndarray, " 3"]
    workspace: Float[np.ndarray, " 3"]


class LayerGroups:
    """Computes the costs of a module's groups of layers.

    Args:
        module: The module.
        required: The gradients that its layers compute.
        costs: The cost model.
        loads: Loads of representative rows.
        rows: Rows' worth of load of a replica's microbatch, ascending from 0.
        fixed_ranks: Context-parallel and expert ranks.
    """

    def __init__(
        self,
        module: ModuleSpec,
        required: RequiredGradients,
        costs: CostModel,
        loads: Loads,
        rows: Float[np.ndarray, " k"],
        fixed_ranks: FixedRanks,
    ) -> None:
        self._costs, self._loads, self._fixed_ranks = costs, loads, fixed_ranks
        self._mean_loads = loads.mean(axis=0) * rows[:, None]
        layers = required.of_layers(module.name, 0, module.layer_count)
        before, after = len(module.leading_layers), len(layers) - len(module.trailing_layers)
        stack = [run._replace(count=1) for run in layers[before:after]]
        layer_size = len(stack) // len(module.stack_kinds)  # a layer, behind its adapters if it has some
        kind_groups = (tuple(stack[start : start + layer_size]) for start in range(0, len(stack), layer_size))
        self._groups = (layers[:before], *kind_groups, layers[after:])
        self._forward_seconds: dict[tuple[str, int], LayerSeconds] = {}

    def costs(self, tp: int, recompute: RecomputePolicy) -> tuple[LayerGroupCosts, ...]:
        """Costs of the leading layers, of a layer of each of `ModuleSpec.stack_kinds`, and of the trailing layers."""
        return tuple(self._group_costs(group, tp, recompute) for group in self._groups)

    def _group_costs(self, group: tuple[LayerGradients, ...], tp: int, recompute: RecomputePolicy) -> LayerGroupCosts:
        """Costs of the layers of a group together."""
        seconds, parameters = np.zeros(len(self._mean_loads)), np.zeros(4)
        saved, workspace = np.zeros(len(self._loads)), np.zeros(len(self._loads))
        ranks = self._ranks(tp)
        for layer, count, gradients in group:
            forward = self._forward(layer, tp)
            per_rank = [layer.parameters_per_rank(tp), layer.expert_parameters_per_rank(tp, ranks.ep)]
            parameters = parameters + count * np.outer(per_rank, [1.0, "wgrad" in gradients]).ravel()
            if gradients:
                backward = self._costs.backward(layer, self._mean_loads, ranks, gradients, recompute)
                if recompute == "offload":
                    size = offloaded_bytes(layer, self._mean_loads, ranks, self._costs)
                    forward, backward = (beside_transfer(seconds, size, self._costs) for seconds in (forward, backward))
                seconds = seconds + count * backward.total
                saved = saved + count * saved_activation_bytes(layer, self._loads, ranks, recompute, self._costs)
            policy = recompute if gradients else "none"
            workspace = np.maximum(workspace, workspace_bytes(layer, self._loads, ranks, policy, self._costs))
            seconds = seconds + count * forward.total
        return LayerGroupCosts(np.asarray(seconds), parameters, _moments(saved), _moments(workspace))

    def _forward(self, layer: LayerSpec, tp: int) -> LayerSeconds:
        if (layer.name, tp) not in self._forward_seconds:
            self._forward_seconds[layer.name, tp] = self._costs.forward(layer, self._mean_loads, self._ranks(tp))
        return self._forward_seconds[layer.name, tp]

    def _ranks(self, tp: int) -> LayerParallelism:
        return LayerParallelism(tp, self._fixed_ranks.cp, ep=self._fixed_ranks.ep, collectives=self._costs.collectives)


def _moments(row_bytes: Float[np.ndarray, " n"] | float) -> Float[np.ndarray, " 3"]:
    """Mean, standard deviation and maximum."""
    return np.array([np.mean(row_bytes), np.std(row_bytes), np.max(row_bytes)])
