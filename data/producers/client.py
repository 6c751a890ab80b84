"""Batches from producers on other hosts (`python -m mmjax.serve_data`), equal to batches made in this process.

Requests are sent ahead and batches returned in order. Step i is requested from producer i mod n. The steps of a
producer that is unavailable are requested from the others, and it is probed at growing intervals. A step that broke off
at one producer is left to the others that are available, until it broke off there too. A step is requested until it has
arrived and is returned once, so a failing producer loses and repeats nothing. The number of requested steps is bounded,
so producers never run ahead of the trainer.
"""

import collections
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.datasets.dataset import Dataset
from data.errors import DataError
from data.packing.batch_iterator import BatchIterator
from data.packing.batch_requirements import WHOLE_BATCHES, BatchRequirements
from data.packing.global_batch import GlobalBatch
from data.packing.phases.item_tables import PhaseCapacityError
from data.packing.pipeline import training_pipeline
from data.packing.row_order import RowOrderRequest
from data.packing.rows.refusals import RefusalLog
from data.packing.rows.row_planner import PlannerState
from data.producers.connection import TOKEN_VARIABLE, ProducerConnection, ProducerUnavailableError, check_address
from data.producers.step_request import MAX_STEPS_AHEAD, StepRequest, batch_fingerprint

MIN_PROBE_INTERVAL, MAX_PROBE_INTERVAL = 0.1, 10.0
"""Seconds before an unavailable producer is probed again: doubled until it makes a step, up to the maximum."""

EXTRA_ATTEMPTS = 4
"""A step that broke off more often than there are producers, by this number, and at each that is available, is taken to
be the cause."""

CLOSE_TIMEOUT = 5.0
"""Seconds for which `close` waits for pending requests."""

_LOG = logging.getLogger(__name__)


def remote_batches(
    config: DataConfig,
    model: ModelConfig,
    dataset: Dataset,
    producers: Sequence[str],
    timeout: float = 120.0,
    row_order: RowOrderRequest | None = None,
    requirements: BatchRequirements = WHOLE_BATCHES,
) -> BatchIterator:
    """The batches of `training_batches`, made by producers of the same configuration.

    The data set is opened in this process too, for its counts and its tokenizer; no step is planned or decoded here.
    The states equal the states of `training_batches`, so a run may continue with producers, with others, or without.
    `config.prefetch` requests to each producer are pending, at least one; producers make nothing else.

    Args:
        config: How samples become batches.
        model: The model that reads them.
        dataset: The samples.
        producers: Address of each producer, `host:port` or `grpc+tls://host:port`.
        timeout: Seconds that a step may take, and for which all producers may be unavailable.
        row_order: Order in which producers put the rows of a step; None to keep them as they are planned.
        requirements: Requirements of this process; producers deal items, and leave rows empty that are not needed.

    Raises:
        DataError: An address is invalid or repeated, or as `training_batches`; from the iterator, if a producer
            refuses a request or all are unavailable for too long.
    """
    for address in producers:
        check_address(address)
    if not producers or len(set(producers)) < len(producers):
        raise DataError(f"the producers are {', '.join(producers) or 'none'}; name each once")
    if not 0 < timeout < float("inf"):
        raise DataError(f"the timeout of producers is {timeout} s; it must be positive and finite")
    pipeline = training_pipeline(config, model, dataset)
    fingerprint = batch_fingerprint(pipeline, config)
    token = os.environ.get(TOKEN_VARIABLE, "")

    def start(state: PlannerState) -> RemoteBatches:
        first_request = StepRequest(
            fingerprint, state, 0, row_order, needed=requirements.needed, phases=requirements.phases
        )
        return RemoteBatches(producers, token, first_request, requirements.prepare, max(config.prefetch, 1), timeout)

    refusals = RefusalLog(pipeline.sample_index.counts, config.max_refused_share)
    return BatchIterator(pipeline.sample_index, pipeline.fingerprint, refusals, start)


@dataclasses.dataclass
class _ProducerStatus:
    """Whether a producer is available.

    Attributes:
        address: Address of the producer.
        unavailable_since: Since when it does not answer; None while it does.
        reason: Last error of the producer.
        probe_interval: Seconds before the next probe, if it fails now.
        next_probe: When it is probed next.
        probing: Whether a probe is pending.
    """

    address: str
    unavailable_since: float | None = None
    reason: str = ""
    probe_interval: float = dataclasses.field(default_factory=lambda: MIN_PROBE_INTERVAL)
    next_probe: float = 0.0
    probing: bool = False

    def step_failed(self, reason: str) -> None:
        """Records that a step broke off."""
        if self.unavailable_since is None:
            self.unavailable_since = time.monotonic()
            self._wait_for_probe()
            _LOG.warning("producer %s is unavailable (%s); the others make its steps", self.address, reason)
        self.reason = reason

    def probe_failed(self, reason: str) -> None:
        """Records that a probe failed."""
        self.probing, self.reason = False, reason
        self._wait_for_probe()

    def probe_succeeded(self) -> None:
        """Records that the producer answers again."""
        self.probing, self.unavailable_since = False, None
        _LOG.warning("producer %s is available again", self.address)

    def step_succeeded(self) -> None:
        """Records that the producer made a step."""
        self.probe_interval = MIN_PROBE_INTERVAL

    def _wait_for_probe(self) -> None:
        self.next_probe = time.monotonic() + self.probe_interval
        self.probe_interval = min(2 * self.probe_interval, MAX_PROBE_INTERVAL)


class RemoteBatches(Iterator[GlobalBatch]):
    """The batches that follow a state; `close` ends its threads."""

    def __init__(
        self,
        producers: Sequence[str],
        token: str,
        first_request: StepRequest,
        prepare: Callable[[GlobalBatch], GlobalBatch],
        ahead: int,
        timeout: float,
    ) -> None:
        """Starts requesting steps.

        Args:
            producers: Addresses of the producers.
            token: Token that they require; empty for none.
            first_request: Request of the first step.
            prepare: Adds to an arriving batch what this process prepares ahead (`BatchRequirements.prepare`).
            ahead: Pending requests to each producer.
            timeout: Seconds that a step may take, and for which all producers may be unavailable.
        """
        self._producers = [_ProducerStatus(address) for address in producers]
        self._token, self._prepare, self._timeout = token, prepare, timeout
        self._ahead = min(ahead * len(producers), MAX_STEPS_AHEAD)
        self._next_request, self._next = first_request, 0  # of the step to return
        self._requested: set[int] = set()  # pending or arrived
        self._arrived: dict[int, GlobalBatch | PhaseCapacityError] = {}
        self._broken: dict[int, collections.Counter[int]] = {}  # by step, how often it broke off at which producer
        self._error: Exception | None = None
        self._closed = False
        self._logged_outage: float | None = None
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._serve_producer, args=(number,), name=f"steps of {address}", daemon=True)
            for number, address in enumerate(producers)
            for _ in range(ahead)
        ]
        for thread in self._threads:
            thread.start()

    def __next__(self) -> GlobalBatch:
        with self._changed:
            while self._next not in self._arrived:
                if self._closed:
                    raise DataError("these batches are closed")
                if self._error is not None:
                    raise self._error
                self._changed.wait(self._remaining_timeout())
            batch = self._arrived[self._next]
            if isinstance(batch, PhaseCapacityError):
                raise batch
            self._arrived.pop(self._next)
            self._requested.remove(self._next)
            self._next += 1
            state = PlannerState.from_json(batch.state)
            self._next_request = dataclasses.replace(self._next_request, planner_state=state, skip=0)
            self._changed.notify_all()
        return batch

    def close(self) -> None:
        """Ends the threads; waits for pending requests, but not for requests that take long."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _remaining_timeout(self) -> float | None:
        """Seconds left while no producer is available; None while one is.

        Raises:
            DataError: None are left.
        """
        outages = [producer.unavailable_since for producer in self._producers if producer.unavailable_since is not None]
        if len(outages) < len(self._producers):
            return None
        outage_start = max(outages)
        remaining = outage_start + self._timeout - time.monotonic()
        if remaining <= 0:
            named = "; ".join(f"{producer.address} ({producer.reason})" for producer in self._producers)
            raise DataError(f"no producer has answered for {self._timeout:g} s: {named}. Start them and resume")
        if self._logged_outage != outage_start:
            self._logged_outage = outage_start
            _LOG.warning("no producer answers; waiting for up to %.0f s", remaining)
        return remaining

    # ------------------------------------------------------------------ threads

    def _serve_producer(self, number: int) -> None:
        """Sends one request after the other to a producer."""
        address, connection = self._producers[number].address, None
        while (task := self._next_task(number)) is not None:
            step, request = task
            try:
                connection = connection or ProducerConnection(address, self._token)
                if request is None:
                    connection.probe()
                    self._record_recovery(number)
                else:
                    self._record_batch(number, step, self._prepare(connection.fetch(request, self._timeout)))
            except ProducerUnavailableError as error:
                if connection:
                    connection.close()
                connection = None
                self._record_failure(number, step if request else None, str(error))
            except PhaseCapacityError as error:  # of this step; the steps before it are trained
                self._record_batch(number, step, error)
            except Exception as error:  # the thread that waits for a batch raises it
                self._record_error(error)
        if connection:
            connection.close()

    def _next_task(self, number: int) -> tuple[int, StepRequest | None] | None:
        """Waits for a step to request from a producer, or for the time to probe it (no request); None when closed."""
        producer = self._producers[number]
        with self._changed:
            while not self._closed and self._error is None:
                wait = None
                if producer.unavailable_since is None:
                    step = self._unrequested_step(number)
                    if step is not None:
                        self._requested.add(step)
                        skip = self._next_request.skip + step - self._next
                        return step, dataclasses.replace(self._next_request, skip=skip)
                elif not producer.probing:
                    wait = producer.next_probe - time.monotonic()
                    if wait <= 0:
                        producer.probing = True
                        return self._next, None
                self._changed.wait(wait)
        return None

    def _unrequested_step(self, number: int) -> int | None:
        """The first step that is not requested and that this producer may make."""
        steps = range(self._next, self._next + self._ahead)
        return next((step for step in steps if step not in self._requested and self._may_make(number, step)), None)

    def _may_make(self, number: int, step: int) -> bool:
        """Whether a step is this producer's, or of one that is unavailable or failed at it, and no other should try."""
        owner, broken = step % len(self._producers), self._broken.get(step, {})
        if number in broken:
            return not self._untried(step)
        return owner in (number, *broken) or self._producers[owner].unavailable_since is not None

    def _untried(self, step: int) -> list[int]:
        """The available producers at which a step has not broken off."""
        broken = self._broken.get(step, {})
        return [
            number
            for number, producer in enumerate(self._producers)
            if producer.unavailable_since is None and number not in broken
        ]

    def _record_batch(self, number: int, step: int, batch: GlobalBatch | PhaseCapacityError) -> None:
        with self._changed:
            self._producers[number].step_succeeded()
            self._arrived[step] = batch
            self._broken.pop(step, None)
            self._changed.notify_all()

    def _record_recovery(self, number: int) -> None:
        with self._changed:
            self._producers[number].probe_succeeded()
            self._changed.notify_all()

    def _record_failure(self, number: int, step: int | None, reason: str) -> None:
        """Records that a step, or without one a probe, failed because the producer is unavailable."""
        producer = self._producers[number]
        with self._changed:
            if step is None:
                producer.probe_failed(reason)
            else:
                producer.step_failed(reason)
                self._requested.remove(step)
                broken = self._broken.setdefault(step, collections.Counter())
                broken[number] += 1
                if broken.total() >= len(self._producers) + EXTRA_ATTEMPTS and not self._untried(step):
                    self._error = DataError(
                        f"a step broke off {broken.total()} times, last at {producer.address} ({reason}): look "
                        f"for what ends producers in step {step - self._next} after the state "
                        f"{self._next_request.planner_state.to_json()}"
                    )
            self._changed.notify_all()

    def _record_error(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
