"""The producer refuses invalid requests and survives them; over real connections on loopback."""

import concurrent.futures
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import threading

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from data.errors import DataError
from data.packing.dealt_phases import DealtPhases
from data.packing.phases.needed_rows import NeededRows
from data.packing.pipeline import training_pipeline
from data.packing.row_order import RowOrderRequest
from data.packing.rows.row_planner import PlannerState
from data.producers.connection import ProducerConnection, ProducerUnavailableError
from data.producers.server import is_loopback, read_token
from data.producers.step_request import STATUS_ACTION, StepRequest, batch_fingerprint
from sharding.balancing.reordering.row_reorderer import RowReorderer
from sharding.plans.plan import single_device_plan
from sharding.specs.modules import module_graph
from tests.data.packing.planned_rows import vision_rows
from tests.data.packing.test_planned_phases import PHASES
from tests.producers import CONFIG, MODEL, serving
from tests.small_vqa import SmallVQA

TOKEN = "correct-horse-battery"
AUDIO_ROWS = dataclasses.replace(
    vision_rows(rows=1, slots=8, capacities=(8,)), module="audio", unit="audio", values="frames"
)


@pytest.fixture(scope="module")
def request_of_first():
    return StepRequest(
        batch_fingerprint(training_pipeline(CONFIG, MODEL, SmallVQA("train")), CONFIG), PlannerState(), 0
    )


@pytest.fixture(scope="module")
def producer():
    with serving() as (_, address):
        yield address


def served(client: flight.FlightClient) -> int:
    (answer,) = client.do_action(STATUS_ACTION)
    return json.loads(answer.body.to_pybytes())["served"]


def assert_served(address: str, request: StepRequest, token: str = "") -> None:
    """It answers, and makes the step."""
    connection = ProducerConnection(address, token)
    connection.probe()
    assert len(connection.fetch(request, 30.0).sample_ids) == CONFIG.rows
    connection.close()


@pytest.mark.parametrize("token", ["", TOKEN + "x", TOKEN[:-1]])
def test_requests_without_the_token_are_refused(request_of_first, token):
    with serving(TOKEN) as (_, address):
        connection = ProducerConnection(address, token)
        for ask in (connection.probe, lambda: connection.fetch(request_of_first, 30.0)):
            with pytest.raises(DataError, match="MMJAX_SERVICE_TOKEN"):
                ask()
        connection.close()
        with flight.FlightClient(f"grpc://{address}") as client:
            for ask in (client.list_actions, lambda: list(client.list_flights())):
                with pytest.raises(flight.FlightUnauthenticatedError):
                    ask()
        assert_served(address, request_of_first, TOKEN)


def test_garbage_on_the_port_does_not_end_the_producer(producer, request_of_first):
    host, port = producer.split(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 999):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            try:
                while raw.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    assert_served(producer, request_of_first)


def test_invalid_tickets_are_refused_with_the_reason(producer, request_of_first):
    with flight.FlightClient(f"grpc://{producer}") as client:
        for ticket in (b"", b"\x80\x04}q\x00.", b"[]", request_of_first.to_bytes()[:-1]):
            with pytest.raises(flight.FlightServerError, match="not a step request"):
                client.do_get(flight.Ticket(ticket))
        with pytest.raises(flight.FlightServerError, match="no row 4 in steps of 4 rows of the batch"):
            client.do_get(flight.Ticket(dataclasses.replace(request_of_first, needed=NeededRows((4,))).to_bytes()))
        with pytest.raises(flight.FlightServerError, match="no action 'reset'"):
            list(client.do_action("reset"))
        for changes, reason in (
            ({"phases": dataclasses.replace(PHASES, microbatches=3)}, "3 microbatches do not divide steps of 4 rows"),
            ({"phases": DealtPhases({"audio": AUDIO_ROWS})}, "no module 'audio' of 'frames'"),
            ({"needed": NeededRows(None, {"vision": (0,)})}, "rows of vision, which has none of its own"),
            ({"needed": NeededRows(None, {"vision": (6,)}), "phases": PHASES}, "no row 6 in steps of 6 rows of vision"),
        ):
            with pytest.raises(flight.FlightServerError, match=reason):
                client.do_get(flight.Ticket(dataclasses.replace(request_of_first, **changes).to_bytes()))
        with pytest.raises(pa.ArrowNotImplementedError):
            list(client.list_flights())
        assert [action.type for action in client.list_actions()] == [STATUS_ACTION]
        before = served(client)
        assert_served(producer, request_of_first)
        assert served(client) == before + 1


@pytest.mark.parametrize("fingerprint", [{}, {"seed": 3}, {"seed": 3, "tokenizer": ""}, {"more\x1b[2J": {"a": 1}}])
def test_another_fingerprint_gets_nothing_of_the_configuration(producer, request_of_first, fingerprint, caplog):
    with flight.FlightClient(f"grpc://{producer}") as client, pytest.raises(flight.FlightServerError) as caught:
        client.do_get(flight.Ticket(dataclasses.replace(request_of_first, fingerprint=fingerprint).to_bytes()))
    answer = f"{caught.value} {caught.value.extra_info.decode()}"
    assert "the trainer has another data configuration" in answer
    values = [*request_of_first.fingerprint, request_of_first.fingerprint["tokenizer"], "->", "vqa", "1024"]
    assert [value for value in values if value in answer.replace("tokens", "")] == []
    assert "None -> " in caplog.text and "\x1b" not in caplog.text


@pytest.mark.processes
def test_tls(tmp_path, monkeypatch, request_of_first):
    if not shutil.which("openssl") and "CI" not in os.environ:
        pytest.skip("openssl, which makes a certificate, is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(certificate))
    with serving(TOKEN, certificate=(certificate.read_bytes(), key.read_bytes())) as (_, address):
        assert_served(f"grpc+tls://{address}", request_of_first, TOKEN)
        plain = ProducerConnection(address, TOKEN)
        with pytest.raises(ProducerUnavailableError):
            plain.probe()
        plain.close()


def test_an_occupied_port_is_named(producer):
    with pytest.raises(DataError, match=f"cannot listen on {producer}"), serving(port=int(producer.split(":")[1])):
        raise AssertionError("two producers on one port")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("[::1]", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_a_token_is_required_off_loopback(host, loopback, tmp_path):
    assert is_loopback(host) is loopback
    if loopback:
        assert read_token("", host) == ""
    else:
        with pytest.raises(DataError, match="give --token_file"):
            read_token("", host)
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    assert read_token(str(path), host) == TOKEN


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"two\nlines", "größe".encode()])
def test_a_token_must_be_one_word(content, tmp_path):
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(DataError, match="token_file"):
        read_token(str(path), "127.0.0.1")
    with pytest.raises(DataError, match="cannot be read"):
        read_token(str(tmp_path / "absent"), "127.0.0.1")


def test_two_steps_are_ordered_at_once(request_of_first, monkeypatch):
    both = threading.Barrier(2, timeout=30)

    def keep_order(self, rows, fits=None):
        both.wait()
        return np.arange(CONFIG.rows)

    monkeypatch.setattr(RowReorderer, "row_order", keep_order)
    order = RowOrderRequest(single_device_plan(module_graph(MODEL), 2), "h100", ("all",), "search")
    request = dataclasses.replace(request_of_first, row_order=order)
    with serving() as (producer, _), concurrent.futures.ThreadPoolExecutor(2) as pool:
        one, other = pool.map(producer._plan, [request] * 2)
    assert one.rows == other.rows
