"""A timeline as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from sharding.plans.text.device_ranges import device_ranges
from sharding.simulation.idle.idle_time import IdleCause
from sharding.simulation.pages.drawn_ops import DrawnHop, DrawnLane, DrawnOp, drawn_hops, drawn_lanes
from sharding.simulation.summary import timeline_summary
from sharding.simulation.timeline import Timeline

Event = dict[str, Any]


def perfetto_trace(timeline: Timeline) -> str:
    """The trace as JSON, with a process per unit, a thread per lane, an event per op, and an arrow per hop.

    A lane that several units share is in the process of the one that computes most on it; the events of the others have
    their names. The ops of a bundle are drawn one after another. An op is drawn at the mean of its replicas. Idle time
    is drawn before it, an event per cause. The figures of `Timeline.summary` are the trace's metadata, with what the
    step is a step of.
    """
    lanes = drawn_lanes(timeline)
    units = list(dict.fromkeys(lane.unit for lane in lanes))
    threads = [{"pid": units.index(lane.unit), "tid": number} for number, lane in enumerate(lanes)]
    events = list(_names(lanes, threads))
    for lane, thread in zip(lanes, threads, strict=True):
        events += itertools.chain.from_iterable(_op_events(op, lane.unit, thread) for op in lane.ops)
        events += _idle_events(lane.idle_after, timeline.step, thread)
    drawn = {
        (number, op.op.kind, op.op.stage_id, op.op.microbatch): op
        for number, lane in enumerate(lanes)
        for op in lane.ops
    }
    for number, hop in enumerate(drawn_hops(timeline)):
        events += _arrow(number, hop, drawn, threads)
    subject = {"made_for": timeline.purpose.document()} if timeline.purpose else {}
    metadata = {**subject, **timeline_summary(timeline)}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": metadata})


def _names(lanes: tuple[DrawnLane, ...], threads: list[Event]) -> Iterator[Event]:
    for lane, thread in zip(lanes, threads, strict=True):
        first, *others = lane.ranks
        pipeline_replica = f", pipeline replica {first.pipeline_replica}" if first.pipeline_replicas > 1 else ""
        shared = "".join(f", {rank.name}" for rank in others)
        name = f"stage {first.stage}{pipeline_replica}{shared}, devices {device_ranges(lane.devices)}"
        yield {"ph": "M", "name": "process_name", **thread, "args": {"name": lane.unit}}
        yield {"ph": "M", "name": "process_sort_index", **thread, "args": {"sort_index": thread["pid"]}}
        yield {"ph": "M", "name": "thread_name", **thread, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", **thread, "args": {"sort_index": thread["tid"]}}


def _op_events(drawn: DrawnOp, unit: str, thread: Event) -> Iterator[Event]:
    yield from _idle_events(drawn.idle_before, drawn.start, thread)
    op = drawn.op
    name = f"{op.kind} {op.microbatch}" if op.microbatch >= 0 else op.kind
    if op.unit not in ("", unit):
        name = f"{op.unit} {name}"
    arguments = {
        "unit": op.unit,
        "microbatch": op.microbatch,
        "virtual stage": op.stage,
        "chunk": drawn.chunk,
        "wait for other ranks (us)": _microseconds(drawn.communication),
        "slowest replica (us)": _microseconds(drawn.slowest),
    }
    start, end, middle = drawn.start, drawn.end, (drawn.start + drawn.end) / 2
    if drawn.half != "whole":
        arguments["in one program with"] = "the next" if drawn.half == "upper" else "the one before"
        start, end = (start, middle) if drawn.half == "upper" else (middle, end)
    yield _slice(name, op.kind, start, end, thread, arguments)


def _idle_events(idle: Mapping[IdleCause, float], end: float, thread: Event) -> Iterator[Event]:
    """Idle time that ends at a moment, cause after cause."""
    start = end - sum(idle.values())
    for cause, seconds in idle.items():
        yield _slice(f"idle: {cause}", "idle", start, start + seconds, thread, {"cause": cause})
        start += seconds


def _slice(name: str, category: str, start: float, end: float, thread: Event, args: Event) -> Event:
    # Both ends are rounded, not the length: neighbours must not overlap, or the viewer nests them.
    first, last = _microseconds(start), _microseconds(end)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": first,
        "dur": round(last - first, 3),
        **thread,
        "args": args,
    }


def _arrow(number: int, hop: DrawnHop, drawn: Mapping[tuple, DrawnOp], threads: list[Event]) -> Iterator[Event]:
    """From the middle of the producing op to the start of the one that waits; the viewer needs a moment inside each."""
    kind = "forward" if hop.op.kind == "hop" else "backward"
    source = drawn[hop.source, kind, hop.op.stage_id, hop.op.microbatch]
    target = drawn[hop.target, kind, hop.op.target_id, hop.op.microbatch]
    arrow = {"name": hop.op.kind, "cat": "hop", "id": number}
    yield {"ph": "s", **arrow, **threads[hop.source], "ts": _microseconds((source.start + source.end) / 2)}
    yield {"ph": "f", "bp": "e", **arrow, **threads[hop.target], "ts": _microseconds(target.start)}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
