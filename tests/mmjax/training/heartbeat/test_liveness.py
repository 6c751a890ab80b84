import hypothesis
from hypothesis import strategies

from mmjax.training.heartbeat.liveness import MOST_NAMED, Liveness, Verdict, parse_verdict
from mmjax.training.heartbeat.process_status import Phase, ProcessStatus


def status(beat: int, phase: Phase = "training", host: str = "node3", op: str = "", failure: str = "") -> ProcessStatus:
    return ProcessStatus(host=host, phase=phase, step=7, beat=beat, op=op, failure=failure)


def test_a_process_whose_status_stays_the_same_is_lost():
    liveness = Liveness(patience=10.0)
    liveness.update({0: status(1), 1: status(1, op="hop a 0 -> b 0")}, 0.0)
    liveness.update({0: status(2), 1: status(1, op="hop a 0 -> b 0")}, 9.0)
    assert liveness.verdict(10.0) is None
    assert liveness.verdict(10.5) == Verdict(
        (1,),
        "process 1 (on node3, training after step 7, waiting for hop a 0 -> b 0) has given no sign of life for 10 s",
    )
    liveness.update({0: status(2), 1: status(2)}, 11.0)
    assert liveness.verdict(11.0) is None


def test_all_lost_processes_are_named():
    liveness = Liveness(patience=10.0)
    liveness.update({2: status(1, "saving"), 1: status(1, "evaluating", "node1")}, 0.0)
    assert liveness.verdict(60.0) == Verdict(
        (1, 2),
        "process 1 (on node1, evaluating after step 7) has given no sign of life for 60 s; "
        "process 2 (on node3, saving after step 7) has given no sign of life for 60 s",
    )


def test_of_many_lost_processes_some_are_named_and_all_counted():
    liveness = Liveness(patience=10.0)
    liveness.update({rank: status(1) for rank in range(MOST_NAMED + 3)}, 0.0)
    verdict = liveness.verdict(60.0)
    assert verdict is not None and verdict.ranks == tuple(range(MOST_NAMED + 3))
    assert verdict.reason.count("no sign of life") == MOST_NAMED and verdict.reason.endswith("; and 3 more")


def test_processes_that_have_ended_or_not_begun_are_not_lost():
    liveness = Liveness(patience=10.0)
    liveness.update({0: status(1)}, 0.0)
    liveness.update({0: status(2, "ended")}, 5.0)
    assert liveness.verdict(1000.0) is None


def test_a_process_that_failed_is_named_at_once_also_when_another_is_silent():
    liveness = Liveness(patience=10.0)
    liveness.update({0: status(1), 1: status(1), 2: status(1)}, 0.0)
    liveness.update({1: status(2, failure="ValueError: no such file")}, 11.0)
    assert liveness.verdict(11.0) == Verdict(
        (1,), "process 1 (on node3, training after step 7) failed: ValueError: no such file"
    )


@hypothesis.given(strategies.lists(strategies.integers(0, 1000)).map(tuple), strategies.text())
def test_a_verdict_is_read_as_it_was_written(ranks, reason):
    assert parse_verdict(Verdict(ranks, reason).to_json()) == Verdict(ranks, reason)


@hypothesis.given(strategies.text())
def test_other_texts_are_no_verdict(text):
    assert parse_verdict(text) is None
    assert parse_verdict('{"ranks": ["1"], "reason": ""}') is None
