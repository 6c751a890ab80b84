"""What is true of every measured timeline of a step."""


def check_measured(timeline, schedule):
    """Every op of a schedule once, on each device one after another, and after what it depends on."""
    spans = {span.op: span for span in timeline.spans}
    assert [span.op for span in timeline.spans] == list(schedule.ops) and len(spans) == len(schedule.ops)
    free = {}
    for span in timeline.spans:
        assert (span.start >= 0).all() and (span.end >= span.start).all(), span.op
        if not span.op.target_unit:
            devices = schedule.op_graph.devices_of(span.op)
            replicas = [sorted(devices)] if span.op.kind == "norm" else timeline.devices[span.op.stage_id].tolist()
            for start, end, held in zip(span.start, span.end, replicas, strict=True):
                assert start >= max(free.get(device, 0.0) for device in held), span.op
                free |= dict.fromkeys(held, end)
    for op, needed in schedule.op_graph.dependencies.items():
        for one in needed:
            start, end = spans[op].start, spans[one].end
            if len(start) == len(end) or 1 in (len(start), len(end)):
                assert (start >= end).all(), (one, op)
            else:
                assert start.max() >= end.max(), (one, op)
    assert all(timeline.busy_by_unit.values())
