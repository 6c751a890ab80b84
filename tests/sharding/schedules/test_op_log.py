from sharding.schedules.op_log import OpLog
from sharding.schedules.ops import GLOBAL_NORM, PipelineOp

FORWARD, HOP, BACKWARD = (
    PipelineOp("forward", "a", 0, 0),
    PipelineOp("hop", "a", 0, 0, "b", 0),
    PipelineOp("backward", "a", 0, 0),
)


class Array:
    ready = False

    def is_ready(self) -> bool:
        return self.ready


def test_the_first_op_that_is_unfinished_is_waited_for_else_the_one_being_dispatched():
    log, hop, norm = OpLog(10), Array(), Array()
    assert log.waits_for() is None and log.last(3) == ()
    log.begin(FORWARD)
    assert log.waits_for() == FORWARD and log.last(3) == (FORWARD,)
    log.end(FORWARD, None)
    log.end(HOP, hop)
    log.end(GLOBAL_NORM, norm)
    log.begin(BACKWARD)
    assert log.waits_for() == HOP and log.last(2) == (GLOBAL_NORM, BACKWARD)
    hop.ready = True
    assert log.waits_for() == GLOBAL_NORM
    norm.ready = True
    assert log.waits_for() == BACKWARD
    log.end(BACKWARD, None)
    assert log.waits_for() is None


def test_as_many_ops_as_asked_for_are_remembered():
    log = OpLog(2)
    for op in (FORWARD, HOP, GLOBAL_NORM):
        log.end(op, None)
    assert log.last(10) == (HOP, GLOBAL_NORM)
