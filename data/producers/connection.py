"""One producer as a trainer sees it: how to ask it, and what its errors mean."""

import contextlib
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight

from data.errors import DataError
from data.packing.global_batch import GlobalBatch
from data.producers.row_slice import restore_rows
from data.producers.step_request import STATUS_ACTION, StepRequest
from data.producers.wire import decode_batch

PROBE_TIMEOUT = 5.0
"""How long a producer may take to say that it is there."""

_ADDRESS = re.compile(r"(grpc\+tls://)?([\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}", re.ASCII)
_OWN_CHANNEL = [("grpc.use_local_subchannel_pool", 1)]  # or a new client would share the old one's waiting times


class ProducerUnavailable(Exception):
    """A producer cannot be reached, or broke off; any other can take its place."""


def check_address(address: str) -> None:
    """Raises DataError if it is not `host:port` or `grpc+tls://host:port`."""
    if not _ADDRESS.fullmatch(address):
        raise DataError(f"the producer {address!r} is not of the form host:port or grpc+tls://host:port")


class ProducerConnection:
    """A connection to a producer, for one request at a time; nothing is sent before the first."""

    def __init__(self, address: str, token: str) -> None:
        """Takes an address as `check_address` does, and what the producer wants to see; empty for nothing."""
        location = address if "://" in address else f"grpc://{address}"
        self._address = address
        self._client = flight.FlightClient(location, generic_options=_OWN_CHANNEL)
        self._headers = [(b"authorization", f"Bearer {token}".encode())] if token else []

    def fetch(self, request: StepRequest, seconds: float) -> GlobalBatch:
        """The batch of a step.

        Raises:
            Gone: It is not there, breaks off, or takes longer than `seconds`.
            DataError: It refuses, and says why.
        """
        with self._named_errors():
            reader = self._client.do_get(flight.Ticket(request.to_bytes()), self._options(seconds))
            schema, rows = reader.schema, [chunk.data for chunk in reader]
        return restore_rows(decode_batch(schema, rows), request.rows)

    def probe(self) -> None:
        """Returns if the producer is there; raises as `fetch`."""
        with self._named_errors():
            list(self._client.do_action(STATUS_ACTION, self._options(PROBE_TIMEOUT)))

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()

    def _options(self, seconds: float) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=seconds, headers=self._headers)

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except flight.FlightUnauthenticatedError as error:
            raise DataError(
                f"producer {self._address}: the token is missing or wrong; set MMJAX_SERVICE_TOKEN to the word in the "
                "file that the producer was given as --token_file"
            ) from error
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            reason = getattr(error, "extra_info", b"")
            if reason:  # only a producer that chose to refuse gives one
                raise DataError(f"producer {self._address}: {reason.decode(errors='replace')}") from error
            raise ProducerUnavailable(str(error).splitlines()[0].split(" gRPC client debug context")[0]) from error
