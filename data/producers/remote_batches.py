"""Asks producers for steps ahead, and hands the batches out in order.

Step i goes to producer i mod n. The steps of a producer that is gone are asked of the others; it is tried again, ever
more seldom. A step is asked anew until it is here and handed out once, so that whoever dies, nothing is lost or
repeated; and no more are asked for than may lie here, so that producers wait for the trainer.
"""

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Iterator, Sequence

from data.errors import DataError
from data.packing.global_batch import GlobalBatch
from data.packing.step_planner import PlannerState
from data.producers.connection import ProducerConnection, ProducerUnavailable
from data.producers.step_request import MAX_STEPS_AHEAD, StepRequest

FIRST_WAIT, LONGEST_WAIT = 0.1, 10.0
"""Seconds before a producer that is gone is tried again: doubled every time, up to the longest."""

MORE_ATTEMPTS = 4
"""A step that broke off as often as there are producers, and so many times more, is what breaks them."""

CLOSING_SECONDS = 5.0
"""How long `close` waits for the requests under way."""

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class _Producer:
    """What is known of a producer; `gone_since` is None while it answers."""

    address: str
    gone_since: float | None = None
    reason: str = ""
    wait: float = FIRST_WAIT
    try_at: float = 0.0
    trying: bool = False

    def lost(self, reason: str) -> None:
        """Notes that a step broke off."""
        if self.gone_since is None:
            self.gone_since, self.wait = time.monotonic(), FIRST_WAIT
            self.try_at = self.gone_since + self.wait
            _LOG.warning("producer %s is gone (%s); the others make its steps", self.address, reason)
        self.reason = reason

    def still_gone(self, reason: str) -> None:
        """Notes that trying it was in vain."""
        self.trying, self.reason = False, reason
        self.wait = min(2 * self.wait, LONGEST_WAIT)
        self.try_at = time.monotonic() + self.wait

    def back(self) -> None:
        """Notes that it answers again."""
        self.trying, self.gone_since = False, None
        _LOG.warning("producer %s is back", self.address)


class RemoteBatches(Iterator[GlobalBatch]):
    """The batches behind a place; `close` ends its threads."""

    def __init__(
        self,
        producers: Sequence[str],
        token: str,
        first: StepRequest,
        ahead: int,
        patience: float,
    ) -> None:
        """Begins to ask.

        Args:
            producers: Their addresses.
            token: What they want to see; empty for nothing.
            first: Asks for the first step.
            ahead: Requests under way to each producer.
            patience: Seconds that a step may take, and that no producer may answer before that is an error.
        """
        self._producers = [_Producer(address) for address in producers]
        self._token, self._patience = token, patience
        self._ahead = min(ahead * len(producers), MAX_STEPS_AHEAD)
        self._first, self._next = first, 0  # the step to hand out
        self._asked: set[int] = set()  # under way or here
        self._here: dict[int, GlobalBatch] = {}
        self._attempts: collections.Counter[int] = collections.Counter()
        self._error: Exception | None = None
        self._closed = False
        self._outage = 0.0
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"steps of {address}", daemon=True)
            for number, address in enumerate(producers)
            for _ in range(ahead)
        ]
        for thread in self._threads:
            thread.start()

    def __next__(self) -> GlobalBatch:
        with self._changed:
            while self._next not in self._here:
                if self._closed:
                    raise DataError("these steps are closed")
                if self._error is not None:
                    raise self._error
                self._changed.wait(self._patience_left())
            batch = self._here.pop(self._next)
            self._asked.remove(self._next)
            self._next += 1
            self._first = dataclasses.replace(self._first, planner_state=PlannerState.from_json(batch.state), skip=0)
            self._changed.notify_all()
        return batch

    def close(self) -> None:
        """Ends the threads, which wait for the answers under way; those that take long are left to themselves."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        end = time.monotonic() + CLOSING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _patience_left(self) -> float | None:
        """Seconds, while no producer answers; None otherwise."""
        since = [producer.gone_since for producer in self._producers]
        if None in since:
            return None
        left = max(since) + self._patience - time.monotonic()
        if left <= 0:
            named = "; ".join(f"{producer.address} ({producer.reason})" for producer in self._producers)
            raise DataError(f"no producer has answered for {self._patience:g} s: {named}. Start them and resume")
        if self._outage != max(since):
            self._outage = max(since)
            _LOG.warning("no producer answers; waiting for up to %.0f s", left)
        return left

    # ------------------------------------------------------------------ what the threads do

    def _work(self, number: int) -> None:
        """Asks a producer for one step after the other."""
        address, connection = self._producers[number].address, None
        while (task := self._task(number)) is not None:
            step, request = task
            try:
                connection = connection or ProducerConnection(address, self._token)
                if request is None:
                    connection.probe()
                    self._is_back(number)
                else:
                    self._arrived(step, connection.fetch(request, self._patience))
            except ProducerUnavailable as gone:
                connection, broken = None, connection
                broken.close()
                self._lost(number, step if request else None, str(gone))
            except Exception as error:  # whoever waits for a batch must hear of it
                self._fail(error)
        if connection:
            connection.close()

    def _task(self, number: int) -> tuple[int, StepRequest | None] | None:
        """Waits for a step to ask for, or for the time to try a lost producer: a step without a request."""
        producer = self._producers[number]
        with self._changed:
            while not self._closed and self._error is None:
                left = None
                if producer.gone_since is None:
                    step = self._free_step(number)
                    if step is not None:
                        self._asked.add(step)
                        return step, dataclasses.replace(self._first, skip=self._first.skip + step - self._next)
                elif not producer.trying:
                    left = producer.try_at - time.monotonic()
                    if left <= 0:
                        producer.trying = True
                        return self._next, None
                self._changed.wait(left)
        return None

    def _free_step(self, number: int) -> int | None:
        """The first step that nobody is asked for and that is this producer's, or of one that is gone."""
        for step in range(self._next, self._next + self._ahead):
            owner = step % len(self._producers)
            if step not in self._asked and (owner == number or self._producers[owner].gone_since is not None):
                return step
        return None

    def _arrived(self, step: int, batch: GlobalBatch) -> None:
        with self._changed:
            self._here[step] = batch
            self._attempts.pop(step, None)
            self._changed.notify_all()

    def _is_back(self, number: int) -> None:
        with self._changed:
            self._producers[number].back()
            self._changed.notify_all()

    def _lost(self, number: int, step: int | None, reason: str) -> None:
        """A step, or without one an attempt to reach the producer again, came to nothing."""
        producer = self._producers[number]
        with self._changed:
            if step is None:
                producer.still_gone(reason)
            else:
                producer.lost(reason)
                self._asked.remove(step)
                self._attempts[step] += 1
                if self._attempts[step] == len(self._producers) + MORE_ATTEMPTS:
                    self._error = DataError(
                        f"a step broke off {self._attempts[step]} times, last at {producer.address} ({reason}): look "
                        f"for what ends producers in the step {step - self._next} behind {self._first.planner_state.to_json()}"
                    )
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
