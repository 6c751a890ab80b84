import hypothesis
from hypothesis import strategies

from mmjax.training.heartbeat.host_stragglers import FACTOR, SHARE, WINDOWS, HostStragglers
from mmjax.training.heartbeat.process_status import ProcessStatus


def statuses(step: int, *data: float, wall: float = 1.0) -> dict[int, ProcessStatus]:
    return {
        rank: ProcessStatus(
            host=f"node{rank}",
            phase="training",
            step=step,
            beat=step,
            window={"step": float(step), "wall": wall, "data": seconds, "dispatch": 0.01},
        )
        for rank, seconds in enumerate(data)
    }


def test_a_slow_process_is_reported_once_with_the_part_the_factor_and_since_when():
    stragglers = HostStragglers()
    lines = [line for step in range(10, 100, 10) for line in stragglers.update(statuses(step, 0.1, 0.1, 0.4))]
    assert lines == [
        "process 2 on node2 is a straggler: waiting for data takes it 0.4 s of a step of 1 s, 4 times the median of "
        "the others, 0.1 s, in 3 windows of steps since step 10"
    ]


def test_windows_are_compared_when_all_have_a_new_one():
    stragglers = HostStragglers()
    for step in range(10, 100, 10):
        known = statuses(10, 0.1, 0.1) | {2: statuses(step, 0.0, 0.0, 0.4)[2]}
        assert not stragglers.update(known)
    assert not stragglers.update(statuses(10, 0.1))


def test_a_process_that_was_slow_is_reported_again_when_it_is_so_again():
    stragglers = HostStragglers()
    slow = [0.9] * WINDOWS + [0.1] + [0.9] * WINDOWS
    lines = [line for step, data in enumerate(slow) for line in stragglers.update(statuses(step, 0.1, data))]
    assert [line.split("since ")[1] for line in lines] == ["step 0", f"step {WINDOWS + 1}"]


@hypothesis.given(strategies.lists(strategies.floats(0, 1), min_size=2, max_size=5), strategies.floats(1, 10))
def test_processes_that_are_alike_are_no_stragglers(data, wall):
    """Within the share of the step, or within the factor, of the quickest."""
    quickest = min(data)
    alike = [min(value, max(FACTOR * quickest, quickest + SHARE * wall)) for value in data]
    stragglers = HostStragglers()
    for step in range(2 * WINDOWS):
        assert not stragglers.update(statuses(step, *alike, wall=wall))
