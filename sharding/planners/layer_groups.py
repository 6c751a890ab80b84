"""Costs of a module's three pieces: what stands before its layers, one of them, and what stands behind."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.cost_model import CostModel, LayerParallelism
from sharding.costs.memory import saved_activation_bytes
from sharding.planners.fixed_ranks import FixedRanks
from sharding.plans.trained_parts import RequiredGradients
from sharding.specs.layer import LayerSpec
from sharding.specs.modules import ModuleSpec


class LayerGroupCosts(NamedTuple):
    """What stands before the layers, one layer, or what stands behind them, on one tensor rank.

    Attributes:
        seconds: Forward and backward, by rows of a microbatch.
        sizes: Numbers in its parameters without experts', and in those that train; and in experts' alike.
        held, again: Bytes kept of a row, and of what is computed again: mean, deviation and most.
    """

    seconds: Float[np.ndarray, " k"]
    parameters: Float[np.ndarray, " 4"]
    saved: Float[np.ndarray, " 3"]
    recomputed: Float[np.ndarray, " 3"]


class LayerGroups:
    """Costs of a module's three pieces."""

    def __init__(
        self,
        module: ModuleSpec,
        turns: RequiredGradients,
        costs: CostModel,
        loads: Float[np.ndarray, "n 3"],
        rows: Int[np.ndarray, " k"],
        given: FixedRanks,
    ) -> None:
        self._costs, self._loads, self._given = costs, loads, given
        self._mean = loads.mean(axis=0) * rows[:, None]
        whole = turns.of_layers(module.name, 0, module.layer_count)
        inner = len(module.leading_layers)
        self._groups = (whole[:inner], whole[inner : inner + 1], whole[inner + 1 :])
        self._known: dict[tuple[str, int], Float[np.ndarray, " k"]] = {}

    def costs(self, tp: int, recompute: str) -> tuple[LayerGroupCosts, ...]:
        """What stands before the layers, one of them, and what stands behind."""
        return tuple(self._piece(group, tp, recompute) for group in self._groups)

    def _piece(
        self, group: tuple[tuple[LayerSpec, int, tuple[str, ...]], ...], tp: int, recompute: str
    ) -> LayerGroupCosts:
        seconds, sizes = np.zeros(len(self._mean)), np.zeros(4)
        ranks = self._ranks(tp)
        held, again = np.zeros(len(self._loads)), np.zeros(len(self._loads))
        for layer, _, turns in group:
            seconds = seconds + self._forward(layer, tp)
            local = np.array([layer.parameters_per_rank(tp), layer.expert_parameters_per_rank(tp, ranks.ep)])
            sizes = sizes + np.outer(local, [1.0, "wgrad" in turns]).ravel()
            if turns:
                seconds = seconds + self._costs.backward(layer, self._mean, ranks, turns, recompute).total
                held = held + saved_activation_bytes(layer, self._loads, ranks, recompute, self._costs)
                if recompute != "none":
                    again = np.maximum(again, saved_activation_bytes(layer, self._loads, ranks, "none", self._costs))
        return LayerGroupCosts(seconds, sizes, _moments(held), _moments(again))

    def _forward(self, layer: LayerSpec, tp: int) -> Float[np.ndarray, " k"]:
        if (layer.name, tp) not in self._known:
            self._known[layer.name, tp] = self._costs.forward(layer, self._mean, self._ranks(tp)).total
        return self._known[layer.name, tp]

    def _ranks(self, tp: int) -> LayerParallelism:
        return LayerParallelism(tp, self._given.cp, self._given.ep, collectives=self._costs.collectives)


def _moments(held: Float[np.ndarray, " n"]) -> Float[np.ndarray, " 3"]:
    return np.array([held.mean(), held.std(), held.max()])
