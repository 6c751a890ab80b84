"""What is true of every measured timeline of a step."""

from sharding.simulation.measured.measured_timeline import replicas_that_finish


def check_measured(timeline, schedule):
    """Every op of a schedule once, its programs on each device one after another, and after what they depend on."""
    spans = {span.op: span for span in timeline.spans}
    assert [span.op for span in timeline.spans] == list(schedule.ops) and len(spans) == len(schedule.ops)
    pipelines, free = schedule.op_graph.stage_graph.pipeline_replicas, {}
    for program in schedule.by_program:
        ends = {}
        for span in (spans[op] for op in program):
            assert (span.start >= 0).all() and (span.end >= span.start).all(), span.op
            if span.op.target_unit:
                continue
            replicas = replicas_that_finish(timeline.devices, span.op, pipelines)
            for start, end, held in zip(span.start, span.end, replicas, strict=True):
                assert start >= max(free.get(device, 0.0) for device in held), span.op
                ends |= {device: max(end, ends.get(device, 0.0)) for device in held}
        free |= ends
    for op, needed in schedule.op_graph.dependencies.items():
        for one in needed:
            start, end = spans[op].start, spans[one].end
            if len(start) == len(end) or 1 in (len(start), len(end)):
                assert (start >= end).all(), (one, op)
            else:
                assert start.max() >= end.max(), (one, op)
    # On a busy machine the recorder may see all ops of a unit end at once, behind those of another.
    assert sum(timeline.busy_by_unit.values()) > 0
