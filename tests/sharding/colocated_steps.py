"""Steps in which encoders share the devices of a backbone."""

import dataclasses
import itertools
from collections.abc import Mapping

from hypothesis import strategies as st

from sharding.plans.resolved.stage_graph import PipelineReplicas, StageGraph, StageId
from sharding.schedules.ops import OpGraph, StageSeconds

BACKBONE = "backbone"


@dataclasses.dataclass(frozen=True)
class Encoder:
    """An encoder on the devices of a backbone of as many pipeline ranks as all its replicas have, or a multiple.

    Attributes:
        slices: Stages on each pipeline rank.
        pp: Pipeline ranks of a pipeline replica.
        replica_of_microbatch: Which pipeline replica takes each microbatch.
        forward, backward: Seconds of a slice.
        trains: Whether it has backwards.
    """

    slices: int
    pp: int
    replica_of_microbatch: tuple[int, ...]
    forward: float
    backward: float
    trains: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backbone:
    """A backbone whose pipeline ranks have a device each; the seconds are those of a virtual stage."""

    ranks: int
    chunks: int = 1
    forward: float = 1.0
    backward: float = 2.0
    forward_communication: float = 0.0
    backward_communication: float = 0.0
    trains: bool = True

    @property
    def seconds(self) -> StageSeconds:
        return StageSeconds(self.forward, self.backward, self.forward_communication, self.backward_communication)


def colocated_op_graph(
    backbone: Backbone, encoders: tuple[Encoder, ...], generators: tuple[tuple[int, float, float], ...] = ()
) -> OpGraph:
    """A step; generators, given as (device, seconds of the forward and of the backward), follow the backbone."""
    devices: dict[StageId, frozenset[int]] = {}
    edges, pp, pipeline_replicas = [], {}, {}
    seconds: dict[StageId, StageSeconds] = {}
    trained: set[StageId] = set()
    backbone_stages = [(BACKBONE, stage) for stage in range(backbone.ranks * backbone.chunks)]
    for number, encoder in enumerate(encoders):
        name, count = f"encoder{number}", max(encoder.replica_of_microbatch) + 1
        width = backbone.ranks // (count * encoder.pp)
        held = [frozenset(range(rank * width, (rank + 1) * width)) for rank in range(count * encoder.pp)]
        stages = [(name, stage) for stage in range(encoder.pp * encoder.slices)]
        for stage in stages:
            devices[stage] = frozenset().union(*held[stage[1] % encoder.pp :: encoder.pp])
        edges += [*itertools.pairwise(stages), (stages[-1], backbone_stages[0])]
        seconds |= dict.fromkeys(stages, StageSeconds(encoder.forward, encoder.backward))
        pp |= {name: encoder.pp} if encoder.slices > 1 else {}
        pipeline_replicas |= {name: PipelineReplicas(tuple(held), encoder.replica_of_microbatch)} if count > 1 else {}
        trained.update(stages if encoder.trains else ())
    devices |= {stage: frozenset([stage[1] % backbone.ranks]) for stage in backbone_stages}
    edges += itertools.pairwise(backbone_stages)
    seconds |= dict.fromkeys(backbone_stages, backbone.seconds)
    pp |= {BACKBONE: backbone.ranks} if backbone.chunks > 1 else {}
    trained.update(backbone_stages if backbone.trains else ())
    for number, (device, forward, backward) in enumerate(generators):
        stage = (f"generator{number}", 0)
        devices[stage] = frozenset([device])
        edges.append((backbone_stages[-1], stage))
        seconds[stage] = StageSeconds(forward, backward)
        trained.add(stage)
    graph = StageGraph(devices, tuple(edges), pp, pipeline_replicas=pipeline_replicas)
    return OpGraph(
        stage_graph=graph,
        microbatches=len(encoders[0].replica_of_microbatch),
        backward_stages=graph.with_descendants(frozenset(trained)),
        trained_stages=frozenset(trained),
        seconds=seconds,
    )


def with_copies(op_graph: OpGraph, pipeline_replicas: Mapping[str, tuple[int, ...]]) -> OpGraph:
    """The same step with other pipeline replicas for its microbatches."""
    graph = op_graph.stage_graph
    divided = {
        unit: dataclasses.replace(old, of_microbatch=pipeline_replicas[unit])
        for unit, old in graph.pipeline_replicas.items()
    }
    return dataclasses.replace(op_graph, stage_graph=dataclasses.replace(graph, pipeline_replicas=divided))


@st.composite
def colocated_recipes(draw: st.DrawFn) -> tuple:
    """Arguments of `colocated_op_graph`."""
    times = st.integers(0, 32).map(lambda n: n / 16)
    longer = st.integers(1, 64).map(lambda n: n / 16)
    ranks, microbatches = draw(st.sampled_from([1, 2, 3, 4])), draw(st.integers(1, 7))
    forward, backward = draw(longer), draw(longer)
    shares = draw(st.tuples(*[st.sampled_from([0.0, 0.25, 0.75])] * 2))
    backbone = Backbone(
        ranks=ranks,
        chunks=draw(st.integers(1, 3)),
        forward=forward,
        backward=backward,
        forward_communication=forward * shares[0],
        backward_communication=backward * shares[1],
        trains=draw(st.booleans()),
    )
    encoders = []
    for _ in range(draw(st.integers(1, 2))):
        pp = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0]))
        most = min(microbatches, ranks // pp)
        count = draw(st.sampled_from([count for count in range(1, most + 1) if ranks % (count * pp) == 0]))
        rest = draw(st.lists(st.integers(0, count - 1), min_size=microbatches - count, max_size=microbatches - count))
        replica_of_microbatch = tuple(draw(st.permutations([*range(count), *rest])))
        slices, trains = draw(st.integers(1, 3)), draw(st.booleans())
        encoders.append(Encoder(slices, pp, replica_of_microbatch, draw(times), draw(times), trains))
    generators = st.tuples(st.integers(0, ranks), times, times)  # the last device is one of its own
    return backbone, tuple(encoders), tuple(draw(st.lists(generators, max_size=1)))
