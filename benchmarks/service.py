"""`python -m benchmarks.service`: what it costs to get a batch from another process, by Arrow Flight and by plain gRPC.

The servers hold one batch, encoded anew for every request, in a process of their own on loopback; the client decodes
it. For comparison the same payload is handed over by a queue inside the process. gRPC (grpcio, if it is installed)
carries the same Arrow stream as the bytes of one message. Latency: the median of requests one after the other;
throughput: several connections at once. Neither says what a network adds.
"""

import concurrent.futures
import contextlib
import importlib.util
import io
import json
import multiprocessing
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.command import run_benchmark
from data.packing.global_batch import GlobalBatch
from data.producers.wire import decode_batch, encode_batch
from mmjax import cli

MEGABYTES = (4, 64)
SECONDS = 2.0
CONNECTIONS = 2
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Fetch = Callable[[], GlobalBatch]


def main(arguments: cli.JsonArguments) -> None:
    """Measures every transport at every size and prints a row for each."""
    rows = [row for megabytes in MEGABYTES for row in measure(megabytes)]
    if arguments.json:
        print(json.dumps({"rows": rows}))
        return
    print(f"{'way':12} {'MB':>4} {'latency ms':>11} {'MB/s, one':>10} {'MB/s, ' + str(CONNECTIONS):>10}")
    for row in rows:
        figures = (row["latency_ms"], row["one_mb_s"], row["several_mb_s"])
        print(f"{row['way']:12} {row['megabytes']:4} {figures[0]:11.3f} {figures[1]:10.0f} {figures[2]:10.0f}")


def measure(megabytes: int) -> list[dict[str, Any]]:
    """Measures all transports for one size of batches."""
    results = []
    ways = {"in process": _in_process, "flight": by_flight}
    if importlib.util.find_spec("grpc"):
        ways["grpc"] = _by_grpc
    for way, opened in ways.items():
        with opened(megabytes) as connect:
            latency = _latency(connect())
            several = _throughput([connect() for _ in range(CONNECTIONS)], megabytes)
        row = {"way": way, "megabytes": megabytes, "latency_ms": 1e3 * latency, "one_mb_s": megabytes / latency}
        results.append(row | {"several_mb_s": several})
    return results


def make_batch(megabytes: int) -> GlobalBatch:
    """A batch of this many megabytes (10^6 bytes), mostly patches, with the other tensors of a real batch."""
    rows, tokens = 8, 256
    patches = (megabytes * 1_000_000 - 6 * 4 * rows * tokens) // (rows * 192 * 4)
    columns = ("tokens", "segments", "branches", "positions", "vision_index", "targets")
    random = np.random.default_rng(0)
    backbone = {name: random.integers(0, 100, (rows, tokens), np.int32) for name in columns}
    vision = {"patches": random.standard_normal((rows, patches, 192), np.float32)}
    arrays = {"backbone": backbone, "vision": vision}
    return GlobalBatch(arrays=arrays, sample_ids=np.zeros((rows, 16), np.int32), real_and_capacity={}, targets=0)


def _latency(fetch: Fetch) -> float:
    fetch()
    seconds, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begin = time.perf_counter()
        fetch()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def _throughput(fetches: list[Fetch], megabytes: int) -> float:
    end = time.perf_counter() + SECONDS

    def fetch_on(fetch: Fetch) -> int:
        count = 0
        while time.perf_counter() < end:
            fetch()
            count += 1
        return count

    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(fetches)) as pool:
        count = sum(pool.map(fetch_on, fetches))
    return count * megabytes / (time.perf_counter() - begin)


@contextlib.contextmanager
def _in_process(megabytes: int) -> Iterator[Callable[[], Fetch]]:
    batch, waiting, ended = make_batch(megabytes), queue.Queue(2), threading.Event()

    def produce() -> None:
        while not ended.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(batch, timeout=0.1)

    thread = threading.Thread(target=produce)
    thread.start()
    yield lambda: waiting.get
    ended.set()
    thread.join()


@contextlib.contextmanager
def _server(serve: Callable[[int, Any], None], megabytes: int) -> Iterator[int]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(megabytes, theirs), daemon=True)
    process.start()
    yield ours.recv()
    process.kill()
    process.join()


class _FlightServer(flight.FlightServerBase):
    def __init__(self, batch: GlobalBatch) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._batch = batch

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(encode_batch(self._batch))


def _serve_flight(megabytes: int, pipe: Any) -> None:
    server = _FlightServer(make_batch(megabytes))
    pipe.send(server.port)
    server.serve()


@contextlib.contextmanager
def by_flight(megabytes: int) -> Iterator[Callable[[], Fetch]]:
    """Opens connections to a server with a batch of so many megabytes; every call is a new one."""
    with _server(_serve_flight, megabytes) as port:

        def connect() -> Fetch:
            client = flight.FlightClient(
                f"grpc://127.0.0.1:{port}", generic_options=[("grpc.use_local_subchannel_pool", 1)]
            )

            def fetch() -> GlobalBatch:
                reader = client.do_get(flight.Ticket(b""))
                return decode_batch(reader.schema, [chunk.data for chunk in reader])

            return fetch

        yield connect


def _serve_grpc(megabytes: int, pipe: Any) -> None:
    import grpc

    batch = make_batch(megabytes)

    def answer(request: bytes, context: Any) -> bytes:
        reader, sink = encode_batch(batch), io.BytesIO()
        with pa.ipc.new_stream(sink, reader.schema) as writer:
            for rows in reader:
                writer.write_batch(rows)
        return sink.getvalue()

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(CONNECTIONS), options=UNLIMITED)
    handler = grpc.unary_unary_rpc_method_handler(answer)  # bytes in, bytes out
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("batches", {"get": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    pipe.send(port)
    server.wait_for_termination()


@contextlib.contextmanager
def _by_grpc(megabytes: int) -> Iterator[Callable[[], Fetch]]:
    import grpc

    with _server(_serve_grpc, megabytes) as port:

        def connect() -> Fetch:
            options = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
            call = grpc.insecure_channel(f"127.0.0.1:{port}", options=options).unary_unary("/batches/get")

            def fetch() -> GlobalBatch:
                with pa.ipc.open_stream(call(b"")) as reader:
                    return decode_batch(reader.schema, list(reader))

            return fetch

        yield connect


if __name__ == "__main__":
    run_benchmark(
        main,
        cli.JsonArguments,
        name="benchmarks.service",
        summary="Measures the transports of batches between processes on loopback.",
        examples=("--json",),
    )
