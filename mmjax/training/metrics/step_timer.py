"""Times of the phases of a step on the host: waiting for data, launching programs, waiting for the devices.

The training loop has one; `TrainingRun.dispatch_step` times its phases by it.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator

PARTS = ("data", "dispatch", "device")


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Means over a window of steps, in seconds a step.

    Attributes:
        steps: Number of steps in the window, including steps that are left out of the means.
        wall: The whole step, on the host's clock.
        data: Waiting for the next batch.
        dispatch: Launching programs, while devices already work.
        device: Waiting for the devices after everything is launched.
    """

    steps: int
    wall: float
    data: float
    dispatch: float
    device: float

    @property
    def other(self) -> float:
        """The rest of the step: logging, saving, the loop itself."""
        return max(0.0, self.wall - self.data - self.dispatch - self.device)


class StepTimer:
    """Adds up the phases of steps until `take_window` is called.

        with timer.part("data"):
            batch = next(batches)
        with timer.part("dispatch"):
            state, metrics = step(state, batch)
        with timer.part("device"):
            jax.block_until_ready(previous_metrics)
        timer.end_step()

    Phases do not nest, nor stand within `excluded`. The clock starts at construction and at every `take_window`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._restart()

    def _restart(self) -> None:
        self._begin = self._clock()
        self._steps = 0
        self._left_out: list[float] = []  # seconds of each step
        self._seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts the time of a `with` block as `data`, `dispatch` or `device`; raises KeyError for another name."""
        self._seconds[name]  # refuse another name before the work is done
        begin = self._clock()
        try:
            yield
        finally:
            self._seconds[name] += self._clock() - begin

    @contextlib.contextmanager
    def excluded(self) -> Iterator[None]:
        """Leaves the time of a `with` block out: it belongs to no step (compilation, evaluation)."""
        begin = self._clock()
        try:
            yield
        finally:
            self._begin += self._clock() - begin

    @contextlib.contextmanager
    def left_out_step(self) -> Iterator[None]:
        """Counts a `with` block as a step that takes longer than others, and leaves it out of the means.

        If there is no other step in the window, the window's means are its own.
        """
        begin = self._clock()
        with self.excluded():
            yield
        self._left_out.append(self._clock() - begin)

    def end_step(self) -> None:
        """Counts one step."""
        self._steps += 1

    def take_window(self) -> StepTimes:
        """Returns the means since the last call; starts a new window. Raises ValueError if no step has ended since."""
        steps = self._steps + len(self._left_out)
        if not steps:
            raise ValueError("no step has ended since the last window")
        wall = self._clock() - self._begin if self._steps else sum(self._left_out)
        counted = self._steps or steps
        seconds = {name: total / counted for name, total in self._seconds.items()}
        times = StepTimes(steps=steps, wall=wall / counted, **seconds)
        self._restart()
        return times
