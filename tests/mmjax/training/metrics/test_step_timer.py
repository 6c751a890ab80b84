"""A step's time is split into parts without overlap or loss; a clock set by hand makes the sums exact."""

import itertools

import pytest

from mmjax.training.metrics.step_timer import StepTimer


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_window_holds_the_means_of_its_steps():
    clock = Clock()
    timer = StepTimer(clock)
    for scale in (1.0, 3.0):
        for name, seconds in (("data", 1.0), ("dispatch", 2.0), ("device", 4.0)):
            with timer.part(name):
                clock.now += seconds * scale
        clock.now += 0.5 * scale
        timer.end_step()
    times = timer.take_window()
    assert (times.steps, times.wall, times.data, times.dispatch, times.device) == (2, 15.0, 2.0, 4.0, 8.0)
    assert times.other == 1.0


def test_a_step_that_is_left_out_counts_but_its_time_only_where_it_is_alone():
    clock = Clock()
    timer = StepTimer(clock)

    def step(seconds: float) -> None:
        with timer.part("device"):
            clock.now += seconds
        timer.end_step()

    step(2.0)
    with timer.left_out_step():
        clock.now += 50.0
    step(4.0)
    times = timer.take_window()
    assert (times.steps, times.wall, times.device) == (3, 3.0, 3.0)
    with timer.left_out_step():
        clock.now += 50.0
    times = timer.take_window()
    assert (times.steps, times.wall, times.device, times.other) == (1, 50.0, 0.0, 50.0)


def test_the_next_window_starts_empty():
    clock = Clock()
    timer = StepTimer(clock)
    with timer.part("device"):
        clock.now += 5.0
    timer.end_step()
    timer.take_window()
    clock.now += 2.0
    timer.end_step()
    times = timer.take_window()
    assert (times.steps, times.wall, times.device, times.other) == (1, 2.0, 0.0, 2.0)


def test_a_part_that_fails_is_counted_too():
    clock = Clock()
    timer = StepTimer(clock)
    with pytest.raises(StopIteration), timer.part("data"):
        clock.now += 3.0
        next(itertools.chain())
    timer.end_step()
    assert timer.take_window().data == 3.0


def test_an_unknown_part_and_an_empty_window_are_refused():
    timer = StepTimer()
    with pytest.raises(KeyError, match="devise"), timer.part("devise"):
        pass
    with pytest.raises(ValueError, match="no step has ended"):
        timer.take_window()


def test_excluded_time_belongs_to_no_step():
    clock = Clock()
    timer = StepTimer(clock)
    with timer.excluded():
        clock.now += 60.0
    with timer.part("device"):
        clock.now += 2.0
    timer.end_step()
    times = timer.take_window()
    assert (times.wall, times.device, times.other) == (2.0, 2.0, 0.0)
