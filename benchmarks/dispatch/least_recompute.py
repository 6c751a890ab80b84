"""The least activation recomputation with which a plan fits: in all layers alike, or in a share of each module's.

Recomputing in all layers alike leaves memory unused. So as many layers as fit recompute by a policy that does not fit
in all of them, and only the others by the one that does.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sharding.plans.plan import Plan
from sharding.specs.layers.layer import RecomputePolicy

_MIXTURES = 5  # how many shares of recomputing layers are tried
_LEAST_STEP = 1 / 64  # by which the next share is larger at least, as shares are of whole layers


class LayerPolicies(NamedTuple):
    """The recomputation policies of the layers of every module.

    Attributes:
        recompute: The recomputation policy of the layers.
        first: The recomputation policy of the first layers of each module, instead.
        share: The share of its layers that these are, from 0 to 1.
    """

    recompute: RecomputePolicy
    first: RecomputePolicy = "none"
    share: float = 0.0

    def of_stage(self, layers: int) -> str:
        """`UnitPlan.recompute` of a stage of one module with so many layers."""
        count = math.ceil(self.share * layers)
        if count == 0:
            return self.recompute
        return self.first if count == layers else f"{count} {self.first}, {layers - count} {self.recompute}"


class SimulatedMemory(NamedTuple):
    """A plan, the seconds of its step, and the share of the memory that it takes."""

    plan: Plan
    step: float
    memory: float


class FittingPlans(NamedTuple):
    """The plans that `least_recompute` finds.

    Attributes:
        fitting: The plans that fit.
        nearest: Of the plans whose layers all recompute alike, the one that takes the least memory.
    """

    fitting: tuple[SimulatedMemory, ...]
    nearest: SimulatedMemory


def least_recompute(
    choices: Sequence[RecomputePolicy], simulate: Callable[[LayerPolicies], SimulatedMemory]
) -> FittingPlans:
    """The plan with the least recomputation in all layers that fits, and mixtures of it with less that does not.

    Args:
        choices: Recomputation policies, from the least to the most.
        simulate: Simulates the plan whose layers recompute so.
    """
    uniform: list[SimulatedMemory] = []
    for choice in choices:
        uniform.append(simulate(LayerPolicies(choice)))
        if uniform[-1].memory <= 1:
            break
    nearest = min(uniform, key=lambda simulated: simulated.memory)
    *faster, fitting = uniform
    if fitting.memory > 1:
        return FittingPlans((), nearest)
    mixed = [
        _mixture(simulate, (choice, choices[len(faster)]), (simulated.memory, fitting.memory))
        for choice, simulated in zip(choices, faster, strict=False)
    ]
    return FittingPlans((fitting, *(mixture for mixture in mixed if mixture)), nearest)


def _mixture(
    simulate: Callable[[LayerPolicies], SimulatedMemory],
    policies: tuple[RecomputePolicy, RecomputePolicy],
    memory: tuple[float, float],
) -> SimulatedMemory | None:
    """A plan of which few layers recompute by the second policy, which fits in all of them, the others by the first.

    What one layer needs while it recomputes is there with the first such layer, and what follows the stack recomputes
    with the last. In between memory falls linearly in the share: the next share follows from the last two.
    """
    last = (1.0, memory[1])
    share = (memory[0] - 1) / (memory[0] - memory[1])
    for _ in range(_MIXTURES):
        if share >= 1:
            break
        simulated = simulate(LayerPolicies(policies[0], policies[1], share))
        if simulated.memory <= 1:
            return simulated
        falling = (simulated.memory - last[1]) / (last[0] - share)
        last = (share, simulated.memory)
        share += max((simulated.memory - 1) / falling if falling > 0 else 0.0, _LEAST_STEP)
    return None
