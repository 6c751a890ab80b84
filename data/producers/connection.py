"""A trainer's connection to one producer, and the translation of its errors.

`client.py` has one for each producer.
"""

import contextlib
import re
from collections.abc import Iterator

from data.errors import DataError, HostError
from data.extras import missing_extra
from data.packing.global_batch import GlobalBatch
from data.packing.phases.item_tables import PhaseCapacityError
from data.producers.step_request import STATUS_ACTION, StepRequest
from data.producers.wire import decode_batch, restore_rows

try:
    import pyarrow as pa
    import pyarrow.flight as flight
except ImportError as error:
    raise missing_extra("the preprocessing service", "service", error) from error

PROBE_TIMEOUT = 5.0
"""Seconds within which a producer must answer a probe."""

TOKEN_VARIABLE = "MMJAX_SERVICE_TOKEN"
"""Environment variable of the token that producers require, so that no file that a run writes contains it."""

_ADDRESS = re.compile(r"(grpc\+tls://)?([\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}", re.ASCII)
# Without its own pool a new client shares the back-off of a former one.
_CHANNEL_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


class ProducerUnavailableError(Exception):
    """A producer cannot be reached, broke off or has a faulty host; any other producer can take its place."""


def check_address(address: str) -> None:
    """Raises DataError unless the address is `host:port` or `grpc+tls://host:port`."""
    if not _ADDRESS.fullmatch(address):
        raise DataError(f"the producer {address!r} is not of the form host:port or grpc+tls://host:port")


class ProducerConnection:
    """A connection to a producer for one request at a time; it connects on the first request."""

    def __init__(self, address: str, token: str) -> None:
        """Prepares a connection.

        Args:
            address: See `check_address`.
            token: Token that the producer requires; empty for none.
        """
        location = address if "://" in address else f"grpc://{address}"
        self._address = address
        self._client = flight.FlightClient(location, generic_options=_CHANNEL_OPTIONS)
        self._headers = [(b"authorization", f"Bearer {token}".encode())] if token else []

    def fetch(self, request: StepRequest, timeout: float) -> GlobalBatch:
        """The batch of a step.

        Args:
            request: The step.
            timeout: Seconds that the request may take.

        Raises:
            ProducerUnavailableError: The producer cannot be reached, breaks off, exceeds the timeout, or its host fails
                to read a sample.
            DataError: The producer refuses the request, with its reason.
            PhaseCapacityError: The items of the step do not fit into the rows of a phase.
        """
        with self._translated_errors():
            reader = self._client.do_get(flight.Ticket(request.to_bytes()), self._call_options(timeout))
            schema, stream_rows = reader.schema, [chunk.data for chunk in reader]
        return restore_rows(decode_batch(schema, stream_rows), request.needed, request.phases)

    def probe(self) -> None:
        """Returns if the producer answers; raises as `fetch`."""
        with self._translated_errors():
            list(self._client.do_action(STATUS_ACTION, self._call_options(PROBE_TIMEOUT)))

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def _call_options(self, timeout: float) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=timeout, headers=self._headers)

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except flight.FlightUnauthenticatedError as error:
            raise DataError(
                f"producer {self._address}: the token is missing or wrong; set {TOKEN_VARIABLE} to the word in the "
                "file that the producer was given as --token_file"
            ) from error
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            refusal = getattr(error, "extra_info", b"")
            if refusal:  # only a producer that refuses a request gives a reason
                name, _, reason = refusal.decode(errors="replace").partition("\n")
                if name == HostError.__name__:  # another host may be able to
                    raise ProducerUnavailableError(reason) from error
                kind = PhaseCapacityError if name == PhaseCapacityError.__name__ else DataError
                raise kind(f"producer {self._address}: {reason}") from error
            raise ProducerUnavailableError(str(error).splitlines()[0].split(" gRPC client debug context")[0]) from error
