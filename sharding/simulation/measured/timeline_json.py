"""A timeline as a JSON document, with all that is needed to draw it again; without costs.

The trainer writes the timeline of a measured step in this form, and reports draw it.
"""

import reprlib
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.common.checks import conforms, wrong_type
from configs.common.errors import UserError
from sharding.plans.resolved.stage_graph import PipelineReplicas, StageGraph, StageId
from sharding.schedules.ops import OpGraph, PipelineOp
from sharding.simulation.measured.measured_timeline import replica_count
from sharding.simulation.op_spans.spans import Span
from sharding.simulation.timeline import Timeline

_TIMES = ("start", "end", "communication")
_TIMELINE_FIELDS = {
    "microbatches": int,
    "rendezvous": bool,
    "with_update": bool,
    "stages": Sequence,
    "edges": Sequence[Sequence[int]],
    "exchanges": Sequence[Sequence[int]],
    "tied_stages": Sequence[Sequence[int]],
    "pipeline_ranks": Mapping[str, int],
    "pipeline_replicas": Mapping[str, Sequence[int]],
    "ops": Sequence,
}
_STAGE_FIELDS = {
    "unit": str,
    "stage": int,
    "devices": Sequence[Sequence[int]],
    "has_backward": bool,
    "trains": bool,
    "splits_backward": bool,
    "compiled": bool,
}
_OP_FIELDS = {**typing.get_type_hints(PipelineOp), **dict.fromkeys(_TIMES, Sequence[float])}


def timeline_document(timeline: Timeline) -> dict[str, Any]:
    """Stages, edges between them as pairs of their numbers, and the ops with their seconds by replica.

    Two ops that follow each other and have seconds `beside` are a bundle.

    The devices of a stage belong to all pipeline replicas of its unit; `pipeline_replicas` says which of them takes
    each microbatch.
    """
    op_graph, graph = timeline.op_graph, timeline.op_graph.stage_graph
    number = {stage: number for number, stage in enumerate(graph.stages)}
    return {
        "microbatches": op_graph.microbatches,
        "rendezvous": timeline.rendezvous,
        "with_update": op_graph.with_update,
        "stages": [
            {
                "unit": stage[0],
                "stage": stage[1],
                "devices": timeline.devices[stage].tolist(),
                "has_backward": stage in op_graph.backward_stages,
                "trains": stage in op_graph.trained_stages,
                "splits_backward": stage in op_graph.split_stages,
                "compiled": stage in graph.compiled,
            }
            for stage in graph.stages
        ],
        "edges": [[number[source], number[target]] for source, target in graph.edges],
        "exchanges": [
            [number[source], number[target]] for source, target in graph.edges if (source, target) in graph.exchanges
        ],
        "tied_stages": [[number[owner], number[borrower]] for owner, borrower in op_graph.tied_stages],
        "pipeline_ranks": dict(graph.pp),
        "pipeline_replicas": {unit: replicas.of_microbatch for unit, replicas in graph.pipeline_replicas.items()},
        "ops": [
            {
                **span.op._asdict(),
                **{name: getattr(span, name).round(9).tolist() for name in _TIMES},
                **({} if span.beside is None else {"beside": span.beside.round(9).tolist()}),
            }
            for span in timeline.spans
        ],
    }


def read_timeline(document: Any) -> Timeline:
    """The timeline of a document of `timeline_document`; raises UserError if it is none."""
    try:
        return _read(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"this is no timeline: {type(error).__name__} {error}") from error


def _read(document: Any) -> Timeline:
    _check_fields(document, _TIMELINE_FIELDS)
    entries, ops = document["stages"], document["ops"]
    for entry in entries:
        _check_fields(entry, _STAGE_FIELDS)
    if document["microbatches"] > len(ops):
        raise ValueError(f"it has {len(ops)} ops for {document['microbatches']} microbatches")
    stages: list[StageId] = [(entry["unit"], entry["stage"]) for entry in entries]

    def having(name: str) -> frozenset[StageId]:
        return frozenset(stage for stage, entry in zip(stages, entries, strict=True) if entry[name])

    devices = {stage: np.array(entry["devices"], int) for stage, entry in zip(stages, entries, strict=True)}
    graph = StageGraph(
        {stage: frozenset(held.ravel().tolist()) for stage, held in devices.items()},
        tuple((stages[source], stages[target]) for source, target in document["edges"]),
        document["pipeline_ranks"],
        frozenset((stages[source], stages[target]) for source, target in document["exchanges"]),
        {
            unit: _read_pipeline_replicas(unit, taken, devices, document)
            for unit, taken in document["pipeline_replicas"].items()
        },
        having("compiled"),
    )
    op_graph = OpGraph(
        stage_graph=graph,
        microbatches=document["microbatches"],
        backward_stages=having("has_backward"),
        trained_stages=having("trains"),
        split_stages=having("splits_backward"),
        tied_stages=tuple((stages[owner], stages[borrower]) for owner, borrower in document["tied_stages"]),
        with_update=document["with_update"],
    )
    spans = tuple(_read_span(entry, devices, graph.pipeline_replicas) for entry in ops)
    _check_bundles(spans, op_graph)
    if sorted(span.op for span in spans) != sorted(op_graph.dependencies):
        raise ValueError("its ops are not the ops of its stages and microbatches, once each")
    return Timeline(op_graph, devices, None, spans, document["rendezvous"])


def _check_bundles(spans: Sequence[Span], op_graph: OpGraph) -> None:
    numbered = iter(spans)
    for span in numbered:
        if span.beside is not None:
            second = next(numbered, span)
            if second.beside is None or op_graph.devices_of(second.op) != op_graph.devices_of(span.op):
                raise ValueError(f"{span.op} has seconds beside another op, but is in no bundle")


def _read_pipeline_replicas(
    unit: str, taken: Sequence[int], devices: Mapping[StageId, np.ndarray], document: Mapping[str, Any]
) -> PipelineReplicas:
    """The pipeline replicas of a unit, from which of them takes each microbatch."""
    if not taken or len(taken) != document["microbatches"] or set(taken) != set(range(len(set(taken)))):
        raise ValueError(f"pipeline replicas of {unit} are {list(taken)}, not one of each microbatch, from 0 on")
    tables = [devices[stage] for stage in sorted(devices) if stage[0] == unit]
    if not tables:
        raise ValueError(f"pipeline replicas of {unit}, which has no stages")
    ranks = tables[: document["pipeline_ranks"].get(unit, len(tables))]
    by_pipeline_replica = [
        np.split(table, max(taken) + 1) for table in ranks
    ]  # raises ValueError where they do not divide
    return PipelineReplicas(
        tuple(
            frozenset(held.ravel().tolist())
            for pipeline_replica in zip(*by_pipeline_replica, strict=True)
            for held in pipeline_replica
        ),
        tuple(taken),
    )


def _read_span(
    entry: Any, devices: Mapping[StageId, np.ndarray], pipeline_replicas: Mapping[str, PipelineReplicas]
) -> Span:
    _check_fields(entry, _OP_FIELDS)
    op = PipelineOp(**{name: entry[name] for name in PipelineOp._fields})
    names = (*_TIMES, "beside") if "beside" in entry else _TIMES
    _check_fields(entry, dict.fromkeys(names, Sequence[float]))
    times = [np.array(entry[name], float) for name in names]
    replicas = replica_count(devices, op, pipeline_replicas)
    if any(len(seconds) != replicas for seconds in times):
        raise ValueError(f"{op} has not one time for each of {replicas} replicas")
    return Span(op, *times)


def _check_fields(entry: Any, fields: Mapping[str, Any]) -> None:
    for name, annotation in fields.items():
        if not conforms(entry[name], annotation):
            raise ValueError(wrong_type(name, reprlib.repr(entry[name]), annotation))
