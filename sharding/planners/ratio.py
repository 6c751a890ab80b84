"""Devices in proportion to the modules' FLOPs (DistTrain's strawman, arXiv 2408.04275, section 5.1)."""

from sharding.costs import useful_flops
from sharding.plan import Plan, PlanError
from sharding.planners.layouts import layout_plan
from sharding.planners.problem import Problem
from sharding.planners.search import search
from sharding.planners.shortage import refusal
from sharding.trainable import Turns

REHEARSED = 4


def plans(problem: Problem) -> list[Plan]:
    """The best layouts with no more devices for a module than its share of the FLOPs."""
    shares = flops_shares(problem)
    limits = {name: max(1, int(share * problem.devices)) for name, share in shares.items()}
    layouts = search(problem, REHEARSED, limits)
    if not layouts:
        if not search(problem):
            raise refusal(problem)
        given = ", ".join(f"{name} {count}" for name, count in limits.items())
        raise PlanError(f"by their FLOPs the units get {given} devices, on which they do not all fit")
    return [layout_plan(problem, layout) for layout in layouts]


def flops_shares(problem: Problem) -> dict[str, float]:
    """Every module's share of the useful FLOPs of a step."""
    turns = Turns(problem.graph, problem.trains)
    flops = {}
    for module in problem.graph.modules:
        load = problem.data.mean(module.name)
        layers = turns.of(module.name, 0, module.layers)
        flops[module.name] = sum(count * float(useful_flops(layer, load, part)) for layer, count, part in layers)
    total = sum(flops.values())
    return {name: work / total for name, work in flops.items()}
