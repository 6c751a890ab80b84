"""Waves of microbatches through a backbone and generators on its devices, which all generators take at once.

A pass of a generator on some of the devices of a backbone's rank keeps the rank from running its own, however idle its
other devices are. With many pipeline replicas of the generator, each microbatch stops a rank for a whole pass. Where
the passes of all pipeline replicas run together, they stop every rank once for as many microbatches as there are
replicas. So the backbone runs the forwards of a wave, then the generators run forwards and backwards of all its
microbatches, then the backbone runs its backwards. Every rank holds the microbatches of a wave.
"""

from sharding.schedules.colocation.colocated_units import ColocatedUnits
from sharding.schedules.numbered_passes import NumberedPasses
from sharding.schedules.ops import OpGraph, PipelineOp


def generators(op_graph: OpGraph, units: ColocatedUnits) -> frozenset[str]:
    """The units on the backbone's devices that come after it."""
    graph = op_graph.stage_graph
    of_backbone = frozenset().union(*(held for stage, held in graph.devices.items() if stage[0] == units.backbone))
    return frozenset(
        stage[0]
        for stage, held in graph.devices.items()
        if stage[0] not in (units.backbone, *units.encoders) and held & of_backbone
    )


def wave_starts(passes: NumberedPasses, units: ColocatedUnits, size: int) -> dict[PipelineOp, float]:
    """Numbers by which the passes of a step follow each other in waves of so many microbatches.

    The passes of encoders are the first and the last of a wave: a backward of an encoder between backwards of the
    backbone would wait until these have gone through all ranks.
    """
    phases = {"forward": (-1, 0, 1), "backward": (4, 3, 2), "wgrad": (4, 3, 2)}

    def phase(op: PipelineOp) -> int:
        return phases[op.kind][0 if op.unit in units.encoders else 1 if op.unit == units.backbone else 2]

    return {op: 10.0 * (op.microbatch // size) + phase(op) for op in passes.ops}
