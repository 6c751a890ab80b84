"""Whole steps that several tests use: a schedule on stages with layouts, and what every op takes."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from sharding.schedule import Node, Schedule, StageGraph, Work, gpipe, interleaved, one_f_one_b
from sharding.simulate import simulate_on
from sharding.step_costs import StageCosts, StepCosts
from sharding.timeline import Timeline
from tests.sharding.graphs import cook, recipes


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """What `simulate_on` takes."""

    devices: Mapping[Node, np.ndarray]
    schedule: Schedule
    work: Work
    costs: StepCosts

    def run(self, rendezvous: bool = False) -> Timeline:
        return simulate_on(self.devices, self.schedule, self.work, self.costs, rendezvous)


def stage_costs(forward, backward=None, **fields) -> StageCosts:
    """Of seconds as [microbatches, instances]; no backward by default, one FLOP and one byte a second of forward."""
    forward = np.asarray(forward, float)
    backward = np.zeros_like(forward) if backward is None else np.asarray(backward, float)
    defaults = {
        "forward_tensor": np.zeros_like(forward),
        "backward_tensor": np.zeros_like(forward),
        "flops": forward,
        "held": forward,
    }
    return StageCosts(forward, backward, **{**defaults, **fields})


def step_costs(work: Work, stages: Mapping[Node, StageCosts], hop: float = 0.0, **fields) -> StepCosts:
    """With the same seconds for every hop, 1 FLOP/s at the peak."""
    edges = {
        (source, target): (np.full_like(stages[target].forward, hop), np.full_like(stages[source].forward, hop))
        for source, target in work.graph.edges
    }
    there = {edge: seconds for edge, (seconds, _) in edges.items()}
    back = {edge: seconds for edge, (_, seconds) in edges.items() if edge[0] in work.backward}
    return StepCosts(stages, there, back, **{"peak_flops": 1.0, **fields})


def single_devices(graph: StageGraph) -> dict[Node, np.ndarray]:
    """Every stage one instance on the first of its devices."""
    return {node: np.array([[min(lanes)]]) for node, lanes in graph.lanes.items()}


@st.composite
def step_recipes(draw: st.DrawFn) -> tuple:
    """For `cook_step`."""
    return draw(recipes()), draw(st.sampled_from([gpipe, one_f_one_b, interleaved])), draw(st.integers(0, 2**32 - 1))


def cook_step(recipe: tuple) -> Step:
    """A step over a fan whose every place has two to four devices for each of its lanes, split in any way.

    All times are multiples of 1/64, so that sums of them are exact.
    """
    (depths, lanes, *others), policy, seed = recipe
    rng = np.random.default_rng(seed)
    each = int(rng.integers(2, 5))
    lanes = lanes or tuple(frozenset([number]) for number in range(sum(depths) + 2))
    widened = tuple(frozenset(each * lane + turn for lane in held for turn in range(each)) for held in lanes)
    work = cook((depths, widened, *others))
    placed = {place: _split(sorted(work.graph.lanes[nodes[0]]), rng) for place, nodes in work.graph.chunks.items()}
    devices = {node: placed[work.graph.places[node]] for node in work.graph.nodes}

    def seconds(*shape: int) -> np.ndarray:
        return rng.integers(0, 64, shape) / 64

    stages = {}
    for node in work.graph.nodes:
        shape = (work.microbatches, len(devices[node]))
        forward, backward = seconds(*shape), seconds(*shape) * (node in work.backward)
        once = dict(zip(("gather", "reduce", "update", "static"), seconds(4), strict=True))
        rest = (forward / 4, backward / 2, seconds(*shape), seconds(*shape))
        stages[node] = StageCosts(forward, backward, *rest, **once)
    hops = {(s, t): seconds(work.microbatches, len(devices[t])) / 4 for s, t in work.graph.edges}
    back = {(s, t): seconds(work.microbatches, len(devices[s])) / 4 for s, t in work.graph.edges if s in work.backward}
    return Step(devices, policy(work), work, StepCosts(stages, hops, back, 1.0, 7.0, float(seconds())))


def _split(held: list[int], rng: np.random.Generator) -> np.ndarray:
    dp = rng.choice([n for n in range(1, len(held) + 1) if len(held) % n == 0])
    return rng.permutation(held).reshape(dp, -1)


def row_feeders(sources: int, targets: int) -> list[list[int]]:
    """`feeders` by counting rows."""
    rows = np.lcm(sources, targets)
    source, target = np.arange(rows) * sources // rows, np.arange(rows) * targets // rows
    return [sorted(set(source[target == instance].tolist())) for instance in range(targets)]
