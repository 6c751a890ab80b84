"""The producer: makes the steps that trainers ask for, and nothing else, over Arrow Flight.

It keeps nothing that it could lose (DistTrain, section 4.2, with deterministic planning in place of a queue): a step is
a function of the request, so a trainer may ask any producer for any step, and again.
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

import pyarrow as pa
import pyarrow.flight as flight

from configs.errors import UserError
from data.data_config import DataConfig
from data.errors import DataError
from data.packing.pipeline import BatchRecipe, fingerprint_differences
from data.packing.row_order import RowOrder, RowOrderRequest
from data.packing.step_planner import StepPlan
from data.producers.row_slice import slice_rows
from data.producers.step_plan_cache import StepPlanCache
from data.producers.step_request import STATUS_ACTION, StepRequest, batch_fingerprint
from data.producers.wire import encode_batch

MAX_CONCURRENT_STEPS = 2
"""Steps in the making at once: one decodes, by as many threads as are configured, while another is packed or sent."""

_LOG = logging.getLogger(__name__)


class ProducerServer(flight.FlightServerBase):
    """Serves the steps of a recipe; `port` says where, `serve` blocks until SIGTERM, SIGINT or `shutdown`."""

    def __init__(
        self,
        recipe: BatchRecipe,
        config: DataConfig,
        address: str,
        token: str = "",
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """Begins to listen.

        Args:
            recipe, config: What it makes steps of; a trainer's must be the same.
            address: Host and port to listen on; port 0 takes a free one.
            token: What a client must send; empty for whoever connects.
            certificate: TLS certificate chain and key, both PEM; None for plain connections.

        Raises:
            DataError: It cannot listen there.
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
        self._recipe, self._identity = recipe, batch_fingerprint(recipe, config)
        self._steps = StepPlanCache(recipe)
        self._turns = threading.BoundedSemaphore(MAX_CONCURRENT_STEPS)
        self._form = recipe.sample_index.sample_format
        self._orders: dict[RowOrderRequest, RowOrder] = {}  # the one used last
        self._ordering = threading.Lock()
        self._served = 0

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.RecordBatchStream:
        """The batch of a `StepRequest`; errors carry the reason, as text, in `extra_info`."""
        try:
            request = StepRequest.from_bytes(ticket.ticket)
            details = fingerprint_differences(request.fingerprint, self._identity)
            if details:
                raise DataError(
                    f"the trainer has another configuration than the producer (trainer -> producer): {details}"
                )
            if request.rows and max(request.rows) >= self._recipe.planner.rows:
                raise DataError(f"there is no row {max(request.rows)} in steps of {self._recipe.planner.rows}")
            with self._turns:
                loader = dataclasses.replace(self._recipe.loader, rows=request.rows)
                batch = loader(self._ordered(request))
        except UserError as error:
            _LOG.warning("refused %s: %s", context.peer(), error)
            raise _refused(str(error)) from error
        except Exception as error:  # whatever it is, the trainer must hear of it, and the others be served
            _LOG.exception("a step for %s failed", context.peer())
            raise _refused(f"{type(error).__name__}: {error}") from error
        self._served += 1
        return flight.RecordBatchStream(encode_batch(slice_rows(batch, request.rows)))

    def _ordered(self, request: StepRequest) -> StepPlan:
        plan = self._steps.step(request.planner_state, request.skip)
        if request.row_order is None:
            return plan
        with self._ordering:  # making an order is dear, and it keeps what it worked out
            if request.row_order not in self._orders:
                self._orders = {
                    request.row_order: request.row_order.make_row_order(self._recipe.loader.model, self._form)
                }
            return plan.reordered(self._orders[request.row_order])

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Answers `STATUS`."""
        if action.type != STATUS_ACTION:
            raise _refused(f"there is no action {action.type!r}; there is {STATUS_ACTION}")
        return iter([flight.Result(json.dumps({"served": self._served}).encode())])

    def list_actions(self, context: flight.ServerCallContext) -> Sequence[tuple[str, str]]:
        """The one action there is."""
        return [(STATUS_ACTION, "Steps served so far.")]


def _refused(reason: str) -> flight.FlightServerError:
    return flight.FlightServerError(reason, reason.encode(errors="replace"))


class _TokenCheck(flight.ServerMiddlewareFactory):
    """Lets pass only calls that bring the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[Any]]) -> None:
        """Raises FlightUnauthenticatedError without the right token; compares in constant time."""
        for given in headers.get("authorization", []):
            if hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._expected):
                return
        raise flight.FlightUnauthenticatedError("the token is missing or wrong")


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach an address; any name but localhost counts as outside."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: str, host: str) -> str:
    """The token that a producer on `host` asks for; empty, for none, on loopback without a file.

    Raises:
        DataError: No file off loopback; or one that cannot be read, is empty, or holds more than a word of ASCII.
    """
    if not path:
        if is_loopback(host):
            return ""
        raise DataError(
            f"--host={host} can be reached from other machines, so clients must show a token: give --token_file, "
            "a file with one long random word, and the same word to trainers in MMJAX_SERVICE_TOKEN"
        )
    try:
        token = pathlib.Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--token_file={path} cannot be read: {error}") from error
    if not token or not token.isprintable() or " " in token:
        raise DataError(f"--token_file={path} must hold one word of printable ASCII; it is empty or holds more")
    return token
