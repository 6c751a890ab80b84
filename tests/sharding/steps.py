"""Whole steps that several tests use: devices, a schedule, and the costs of every op."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from sharding.costs.step_costs import StageCosts, StaticBytes, StepCosts, WgradCosts
from sharding.plans.resolved.stage_graph import StageGraph, StageId
from sharding.schedules.interleaved_1f1b import interleaved
from sharding.schedules.one_f_one_b import gpipe, one_f_one_b
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule
from sharding.schedules.zero_bubble import zero_bubble
from sharding.simulation.simulator import simulate_on_devices
from sharding.simulation.timeline import Timeline
from tests.sharding.stage_graphs import build_op_graph, recipes, replaced


@dataclasses.dataclass(frozen=True, eq=False)
class SimulatedStep:
    """The arguments of `simulate_on_devices`."""

    devices: Mapping[StageId, np.ndarray]
    schedule: Schedule
    costs: StepCosts

    @property
    def op_graph(self) -> OpGraph:
        return self.schedule.op_graph

    def replicas(self, stage: StageId, microbatch: int) -> np.ndarray:
        """Devices of the replicas of a stage that work on a microbatch; of all pipeline replicas, if it is -1."""
        graph, every_replica = self.op_graph.stage_graph, self.devices[stage].tolist()
        if microbatch < 0:
            return np.array(every_replica)
        devices = graph.rank_devices[graph.rank_of_microbatch(stage, microbatch)]
        return np.array([held for held in every_replica if devices.issuperset(held)])

    def run(self, rendezvous: bool = False) -> Timeline:
        return simulate_on_devices(self.devices, self.schedule, self.costs, rendezvous)


def stage_costs(forward, backward=None, **fields) -> StageCosts:
    """Costs from seconds [microbatches, replicas]; by default no backward, and one FLOP and one byte per second."""
    forward = np.asarray(forward, float)
    backward = np.zeros_like(forward) if backward is None else np.asarray(backward, float)
    defaults = {
        "forward_communication": np.zeros_like(forward),
        "backward_communication": np.zeros_like(forward),
        "flops": forward,
        "saved_bytes": forward,
        "offloaded_bytes": np.zeros_like(forward),
    }
    return StageCosts(forward=forward, backward=backward, **{**defaults, **fields})


def step_costs(op_graph: OpGraph, stages: Mapping[StageId, StageCosts], hop: float = 0.0, **fields) -> StepCosts:
    """Costs with the same seconds for every hop, and a peak of 1 FLOP/s."""
    edges = {
        (source, target): (np.full_like(stages[target].forward, hop), np.full_like(stages[source].forward, hop))
        for source, target in op_graph.stage_graph.edges
    }
    there = {edge: seconds for edge, (seconds, _) in edges.items()}
    back = {edge: seconds for edge, (_, seconds) in edges.items() if edge[0] in op_graph.backward_stages}
    return StepCosts(stages=stages, hops=there, gradient_hops=back, **{"peak_flops": 1.0, **fields})


def single_devices(graph: StageGraph) -> dict[StageId, np.ndarray]:
    """Every stage with one replica, on the first of its devices."""
    return {stage_id: np.array([[min(device_sets)]]) for stage_id, device_sets in graph.devices.items()}


@st.composite
def step_recipes(draw: st.DrawFn, bundles: bool = True) -> tuple:
    """Arguments of `build_step`, with bundles or without any."""
    policy = draw(st.sampled_from([gpipe, one_f_one_b, interleaved, zero_bubble]))
    seed = draw(st.integers(0, 2**32 - 1))
    return draw(recipes()), policy, seed, bundles and draw(st.booleans())


def build_step(recipe: tuple) -> SimulatedStep:
    """A step over a fan, in which every device is replaced by two to four, divided into replicas in any way.

    Copies of a unit's pipeline have equally many replicas.

    All times are multiples of 1/64, so that sums of them are exact.
    """
    (depths, device_sets, *others), policy, seed, bundles = recipe
    rng = np.random.default_rng(seed)
    parts = int(rng.integers(2, 5))
    device_sets = device_sets or tuple(frozenset([number]) for number in range(sum(depths) + 2))
    widened = tuple(replaced(held, parts) for held in device_sets)
    op_graph = build_op_graph((depths, widened, *others))
    if policy is zero_bubble:
        op_graph = with_split_stages(op_graph)
    graph = op_graph.stage_graph
    placed: dict[tuple, np.ndarray] = {}
    for ranks in dict.fromkeys(graph.ranks_of.values()):
        dp = rng.choice(_divisors(len(graph.rank_devices[ranks[0]])))
        placed[ranks] = np.concatenate(
            [rng.permutation(sorted(graph.rank_devices[rank])).reshape(dp, -1) for rank in ranks]
        )
    devices = {stage_id: placed[graph.ranks_of[stage_id]] for stage_id in graph.stages}
    replicas = {
        stage_id: len(devices[stage_id]) // graph.pipeline_replica_count(stage_id[0]) for stage_id in graph.stages
    }

    def seconds(*shape: int) -> np.ndarray:
        return rng.integers(0, 64, shape) / 64

    stages = {}
    for stage_id in op_graph.stage_graph.stages:
        shape = (op_graph.microbatches, replicas[stage_id])
        forward, backward = seconds(*shape), seconds(*shape) * (stage_id in op_graph.backward_stages)
        held = shape[0], shape[1] * int(rng.choice(_divisors(devices[stage_id].shape[1])))
        wgrad = None
        if stage_id in op_graph.split_stages:
            wgrad = WgradCosts(backward * rng.integers(0, 5, shape) / 8, seconds(*held))
        *once_seconds, static = seconds(4)
        once = dict(zip(("gather", "reduce", "update"), once_seconds, strict=True))
        stages[stage_id] = StageCosts(
            forward=forward,
            backward=backward,
            forward_communication=forward / 4,
            backward_communication=backward / 2,
            flops=seconds(*shape),
            saved_bytes=seconds(*held),
            offloaded_bytes=seconds(*held),
            wgrad=wgrad,
            static=StaticBytes(static / 2, reserved=static / 2),
            **once,
        )
    hops = {(s, t): seconds(op_graph.microbatches, replicas[t]) / 4 for s, t in op_graph.stage_graph.edges}
    back = {
        (s, t): seconds(op_graph.microbatches, replicas[s]) / 4
        for s, t in op_graph.stage_graph.edges
        if s in op_graph.backward_stages
    }
    schedule = policy(op_graph)
    return SimulatedStep(
        devices,
        bundled(schedule, rng) if bundles else schedule,
        StepCosts(
            stages=stages, hops=hops, gradient_hops=back, peak_flops=1.0, tokens=7.0, global_norm=float(seconds())
        ),
    )


def with_split_stages(op_graph: OpGraph) -> OpGraph:
    """The same step, in which every stage that trains and sends a gradient back computes its wgrad later."""
    sources, backward = op_graph.stage_graph.sources, op_graph.backward_stages
    split = frozenset(stage for stage in op_graph.trained_stages if not backward.isdisjoint(sources[stage]))
    return dataclasses.replace(op_graph, split_stages=split)


def bundled(schedule: Schedule, rng: np.random.Generator) -> Schedule:
    """The schedule with some ops moved behind an earlier one with which they then are a bundle."""
    op_graph, ops = schedule.op_graph, list(schedule.ops)
    chosen: list[PipelineOp] = []
    for place in range(len(ops)):
        first = ops[place]
        if first.kind not in ("forward", "backward", "gather", "reduce") or first in chosen or rng.random() < 0.3:
            continue
        ran = set(ops[:place])
        for later in ops[place + 1 : place + 40]:
            if (
                later.kind in ("forward", "backward")
                and later.unit != first.unit
                and op_graph.devices_of(later) == op_graph.devices_of(first)
                and ran.issuperset(op_graph.dependencies[later])
            ):
                ops.remove(later)
                ops.insert(place + 1, later)
                chosen.append(later)
                break
    return Schedule(op_graph, tuple(ops), frozenset(chosen))


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def overlapping_replicas(sources: int, targets: int) -> list[list[int]]:
    """`source_replicas` by counting rows."""
    rows = np.lcm(sources, targets)
    source, target = np.arange(rows) * sources // rows, np.arange(rows) * targets // rows
    return [sorted(set(source[target == replica].tolist())) for replica in range(targets)]


def uneven_timeline(rendezvous: bool = False) -> Timeline:
    """Three encoder replicas feed a backbone of two ranks with two chunks and two replicas; costs are random."""
    rng = np.random.default_rng(0)
    devices = {("encoder", 0): np.arange(3)[:, None]}
    devices |= {("backbone", v): 3 + 4 * (v % 2) + np.arange(4).reshape(2, 2) for v in range(4)}
    stage_ids = list(devices)
    lanes = {stage_id: frozenset(held.ravel().tolist()) for stage_id, held in devices.items()}
    graph = StageGraph(lanes, tuple(zip(stage_ids[:-1], stage_ids[1:], strict=True)), {"backbone": 2})
    op_graph = OpGraph(
        stage_graph=graph, microbatches=4, backward_stages=frozenset(stage_ids), trained_stages=frozenset(stage_ids)
    )
    stages = {}
    for stage_id in stage_ids:
        seconds = rng.uniform(0.5, 1.5, (4, len(devices[stage_id])))
        once = {"gather": 0.3, "reduce": 0.7, "update": 0.1}
        stages[stage_id] = stage_costs(seconds, 2 * seconds, forward_communication=seconds / 3, **once)
    return SimulatedStep(devices, interleaved(op_graph), step_costs(op_graph, stages, 0.05)).run(rendezvous)
