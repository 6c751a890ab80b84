"""The producer: makes the steps that trainers request, over Arrow Flight.

It keeps no state that could be lost (DistTrain, arXiv 2408.04275, section 4.2, with deterministic planning in place of
a queue): a step is a function of the request, so a trainer may request any step of any producer, and repeatedly.
"""

import dataclasses
import hmac
import ipaddress
import json
import logging
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from configs.common.errors import UserError
from configs.common.shown_text import one_line
from data.data_config import DataConfig
from data.errors import DataError
from data.extras import missing_extra
from data.packing.fingerprint import fingerprint_differences
from data.packing.pipeline import BatchPipeline
from data.packing.row_order import RowOrder, RowOrderRequest
from data.packing.rows.row_planner import StepPlan
from data.producers.request_bounds import RequestBounds
from data.producers.step_plan_cache import StepPlanCache
from data.producers.step_request import STATUS_ACTION, StepRequest, batch_fingerprint
from data.producers.wire import encode_batch, slice_rows

try:
    import pyarrow as pa
    import pyarrow.flight as flight
except ImportError as error:
    raise missing_extra("the preprocessing service", "service", error) from error

MAX_CONCURRENT_STEPS = 2
"""Steps in progress: one is decoded, by the configured number of threads, while another is packed or sent."""

_LOG = logging.getLogger(__name__)


class ProducerServer(flight.FlightServerBase):
    """Serves the steps of a pipeline on `port`; `serve` blocks until SIGTERM, SIGINT or `shutdown`."""

    def __init__(
        self,
        pipeline: BatchPipeline,
        config: DataConfig,
        address: str,
        token: str = "",
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """Starts listening.

        Args:
            pipeline: Plans and decodes the steps.
            config: The pipeline's configuration; a trainer's must be the same.
            address: Host and port; port 0 for a free one.
            token: Token that clients must send; empty for none.
            certificate: TLS certificate chain and key, both PEM; None for plain connections.

        Raises:
            DataError: It cannot listen on the address.
        """
        scheme = "grpc+tls" if certificate else "grpc"
        try:
            super().__init__(
                f"{scheme}://{address}",
                tls_certificates=[certificate] if certificate else None,
                middleware={"token": _TokenCheck(token)} if token else None,
            )
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(f"cannot listen on {address}: {error}") from error
        self._pipeline, self._fingerprint = pipeline, batch_fingerprint(pipeline, config)
        self._bounds = RequestBounds.of(pipeline, config)
        self._plans = StepPlanCache(pipeline)
        self._step_slots = threading.BoundedSemaphore(MAX_CONCURRENT_STEPS)
        self._row_order: tuple[RowOrderRequest, RowOrder] | None = None  # the last one used
        self._row_order_lock = threading.Lock()
        self._served = 0

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.RecordBatchStream:
        """The batch of a `StepRequest`; errors carry their type and reason, as text, in `extra_info`."""
        try:
            self._bounds.check_size(ticket.ticket)
            request = StepRequest.from_bytes(ticket.ticket)
            self._check_fingerprint(context.peer(), request)
            self._bounds.check(request)
            with self._step_slots:
                loader = dataclasses.replace(self._pipeline.loader, needed=request.needed, phases=request.phases)
                batch = loader(self._plan(request))
        except UserError as error:
            _LOG.warning("refused %s: %s", context.peer(), error)
            raise _refusal(str(error), type(error)) from error
        except Exception as error:  # the trainer must receive the reason, and others must be served
            _LOG.exception("a step for %s failed", context.peer())
            raise _refusal(f"{type(error).__name__}: {error}") from error
        self._served += 1
        return flight.RecordBatchStream(encode_batch(slice_rows(batch, request.needed, request.phases)))

    def _check_fingerprint(self, peer: str, request: StepRequest) -> None:
        """Refuses a request of another configuration; only this host's log names the differences."""
        if request.fingerprint == self._fingerprint:
            return
        differences = fingerprint_differences(request.fingerprint, self._fingerprint)
        _LOG.warning("%s has another configuration (trainer -> producer): %s", peer, one_line(differences))
        raise DataError(
            "the trainer has another data configuration than the producer; the producer's log says what differs. Give "
            "both the same gin files and the same data"
        )

    def _plan(self, request: StepRequest) -> StepPlan:
        plan = self._plans.step(request.planner_state, request.skip)
        if request.row_order is None:
            return plan
        return plan.reordered(self._row_order_of(request.row_order))  # other requests order rows meanwhile

    def _row_order_of(self, request: RowOrderRequest) -> RowOrder:
        """The row order of a request; the last one is kept, since it caches what it computes."""
        with self._row_order_lock:
            if self._row_order is None or self._row_order[0] != request:
                row_order = request.make_row_order(
                    self._pipeline.loader.model, self._pipeline.sample_index.sample_format
                )
                self._row_order = (request, row_order)
            return self._row_order[1]

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Answers `STATUS_ACTION`."""
        if action.type != STATUS_ACTION:
            raise _refusal(f"there is no action {action.type!r}; there is {STATUS_ACTION}")
        return iter([flight.Result(json.dumps({"served": self._served}).encode())])

    def list_actions(self, context: flight.ServerCallContext) -> Sequence[tuple[str, str]]:
        """The only action."""
        return [(STATUS_ACTION, "Number of steps served.")]


def _refusal(reason: str, kind: type[UserError] = DataError) -> flight.FlightServerError:
    return flight.FlightServerError(reason, f"{kind.__name__}\n{reason}".encode(errors="replace"))


class _TokenCheck(flight.ServerMiddlewareFactory):
    """Admits only calls that send the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[Any]]) -> None:
        """Raises FlightUnauthenticatedError without the right token; compares in constant time."""
        for value in headers.get("authorization", []):
            if hmac.compare_digest(value.encode() if isinstance(value, str) else value, self._expected):
                return
        raise flight.FlightUnauthenticatedError("the token is missing or wrong")


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach an address; of names, only localhost counts."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: str, host: str) -> str:
    """The token that a producer on `host` requires; empty, for none, on loopback without a file.

    Raises:
        DataError: There is no file and the host is not loopback; or the file cannot be read, is empty, or holds
            anything but one word of ASCII.
    """
    if not path:
        if is_loopback(host):
            return ""
        raise DataError(
            f"--host={host} can be reached from other machines, so clients must send a token: give --token_file, "
            "a file with one long random word, and the same word to trainers in MMJAX_SERVICE_TOKEN"
        )
    try:
        token = pathlib.Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--token_file={path} cannot be read: {error}") from error
    if not token or not token.isprintable() or " " in token:
        raise DataError(f"--token_file={path} must hold one word of printable ASCII; it is empty or holds more")
    return token
