"""A layout of modules on disjoint devices: a candidate, replicas and devices of each."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple


class ModuleChoice(NamedTuple):
    """A module's candidate, replicas and devices in a layout.

    Attributes:
        candidate: Number of the candidate in the module's table.
        rows: Rows' worth of load of the slowest replica's microbatch, the mean over microbatches.
        dp: Number of replicas.
        devices: Number of devices of all replicas.
        dealt: Whether items are dealt over the replicas (`UnitPlan.phase_rows`), which take whole rows if not.
    """

    candidate: int
    rows: float
    dp: int
    devices: int
    dealt: bool = False


@dataclasses.dataclass(frozen=True)
class DisjointLayout:
    """One choice for every module, on devices of its own.

    Attributes:
        seconds: The objective: fill latency and steady phase of a step.
        microbatches: Microbatches of a step.
        choices: The choice of each module.
    """

    seconds: float
    microbatches: int
    choices: Mapping[str, ModuleChoice]

    @property
    def devices(self) -> int:
        """Number of devices of all modules."""
        return sum(choice.devices for choice in self.choices.values())
