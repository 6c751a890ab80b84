"""How far simulated steps were from published ones, and the range in which a simulated step is expected to lie.

The errors are of the testing half of `benchmarks/validation`, which decides no constant of the costs;
`python -m benchmarks.validation --write` writes them beside this file. `PlanningProblem.simulate` gives a timeline the
errors of its families.
"""

import functools
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from sharding.plans.plan import Plan
from sharding.specs.modules import ModuleGraph

Family = Literal["pipeline", "fully_sharded", "experts", "diffusion", "vision_language", "encoder"]
"""What a published run is an example of: of language models how they are divided, else what is trained."""

ERRORS_FILE = pathlib.Path(__file__).with_suffix(".json")
QUANTILES = (0.1, 0.9)
"""Of the errors of a family: four of five of its runs lie between them."""


class StepRange(NamedTuple):
    """The seconds between which a step is expected to lie.

    Attributes:
        least: Lower end, in seconds.
        most: Upper end, in seconds.
        runs: Number of published runs whose errors give it.
    """

    least: float
    most: float
    runs: int

    def overlaps(self, other: "StepRange") -> bool:
        """Whether a step may lie in both."""
        return self.least <= other.most and other.least <= self.most


def error_families(plan: Plan, graph: ModuleGraph) -> tuple[Family, ...]:
    """The families of runs whose errors a plan's step may have.

    A plan is fully sharded if one of its units is, else a pipeline. Encoders make a model one of vision and language,
    generators one of diffusion. Runs of encoders alone (`encoder`) are of no plan's kind.
    """
    families: list[Family] = []
    families.append("fully_sharded" if any(unit.parallelism.fsdp > 1 for unit in plan.units) else "pipeline")
    if any(module.expert_count for module in graph.modules):
        families.append("experts")
    backbone = graph.names.index(graph.backbone.name)
    if backbone > 0:
        families.append("vision_language")
    if backbone < len(graph.names) - 1:
        families.append("diffusion")
    return tuple(families)


@functools.cache
def published_errors() -> Mapping[Family, Mapping[str, float]]:
    """By family and run, the share by which the simulated step was longer than the published one."""
    return json.loads(ERRORS_FILE.read_text(encoding="utf-8"))["errors"]


def step_range(seconds: float, families: Iterable[Family]) -> StepRange:
    """The range of a simulated step: its seconds divided by one plus the quantiles of its families' errors.

    Where a step has several families, the range holds the range of each.

    Args:
        seconds: The simulated step.
        families: Its families.
    """
    errors = [[*published_errors()[family].values()] for family in families]
    fast, slow = np.array([np.quantile(family_errors, QUANTILES) for family_errors in errors]).T
    return StepRange(float(seconds / (1 + slow.max())), float(seconds / (1 + fast.min())), sum(map(len, errors)))
