"""A plan with its simulated step, and the same after changes."""

import dataclasses

from sharding.plans.plan import Plan
from sharding.simulation.timeline import Timeline


@dataclasses.dataclass(frozen=True, eq=False)
class SimulatedPlan:
    """A plan and its simulated step."""

    plan: Plan
    timeline: Timeline

    @property
    def device_seconds(self) -> float:
        """Devices times the seconds of its step."""
        return self.plan.device_count * self.timeline.step


@dataclasses.dataclass(frozen=True, eq=False)
class ImprovedPlan(SimulatedPlan):
    """A plan that was changed.

    Attributes:
        changes: What was changed, in words, in the order of the changes.
    """

    changes: tuple[str, ...] = ()
