from mmjax.training.heartbeat.liveness import Liveness
from mmjax.training.heartbeat.process_status import Phase, ProcessStatus


def status(beat: int, phase: Phase = "training", host: str = "node3") -> ProcessStatus:
    return ProcessStatus(host=host, phase=phase, step=7, beat=beat)


def test_a_process_whose_status_stays_the_same_is_lost():
    liveness = Liveness(patience=10.0)
    liveness.update({0: status(1), 1: status(1)}, 0.0)
    liveness.update({0: status(2), 1: status(1)}, 9.0)
    assert liveness.lost(10.0) == ""
    assert liveness.lost(10.5) == ("process 1 (on node3, training after step 7) has given no sign of life for 10 s")
    liveness.update({0: status(2), 1: status(2)}, 11.0)
    assert liveness.lost(11.0) == ""


def test_all_lost_processes_are_named():
    liveness = Liveness(patience=10.0)
    liveness.update({2: status(1, "saving"), 1: status(1, "evaluating", "node1")}, 0.0)
    assert liveness.lost(60.0) == (
        "process 1 (on node1, evaluating after step 7) has given no sign of life for 60 s; "
        "process 2 (on node3, saving after step 7) has given no sign of life for 60 s"
    )


def test_processes_that_have_ended_or_not_begun_are_not_lost():
    liveness = Liveness(patience=10.0)
    liveness.update({0: status(1)}, 0.0)
    liveness.update({0: status(2, "ended")}, 5.0)
    assert liveness.lost(1000.0) == ""
