"""`python -m mmjax.serve_data`: a producer, which makes batches for trainers on a host without accelerators.

The configuration is the trainer's own, whose `TrainConfig.producers` names the addresses of the producers. Start as
many as preprocessing needs, several on a host with many cores. They do not communicate with each other, and
any may end at any time.
"""

import dataclasses
import functools
import logging
import pathlib
from typing import TYPE_CHECKING

from mmjax import cli

if TYPE_CHECKING:
    from mmjax.training.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeDataArguments(cli.GinArguments):
    """Flags of the command."""

    host: str = cli.flag(
        "127.0.0.1", "Address to listen on; any but loopback requires --token_file.", metavar="ADDRESS"
    )
    port: int = cli.flag(7070, "Port to listen on; 0 for a free one.", metavar="N", parse=cli.integer(0, 65535))
    token_file: str = cli.flag("", "File with the token that trainers must send.", metavar="FILE")
    tls_certificate: str = cli.flag("", "PEM file of a certificate; serves TLS, with --tls_key.", metavar="FILE")
    tls_key: str = cli.flag("", "PEM file of the certificate's key.", metavar="FILE")


def prepare(arguments: ServeDataArguments) -> cli.Work:
    """Reads the configuration, the token and the certificate."""
    from data.producers.server import is_loopback, read_token

    # In place of the lines of other commands: of a server it matters when something happened.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    token = read_token(arguments.token_file, arguments.host)
    certificate = _read_certificate(arguments)
    if not certificate and not is_loopback(arguments.host):
        logging.warning("without --tls_certificate the token and all data are sent unencrypted")
    config = cli.training_config(arguments)
    return functools.partial(serve, config, arguments.host, arguments.port, token, certificate)


def serve(config: "TrainConfig", host: str, port: int, token: str, certificate: tuple[bytes, bytes] | None) -> int:
    """Prints the address once it listens, then serves until SIGTERM or SIGINT."""
    from data.packing.pipeline import training_pipeline
    from data.producers.server import ProducerServer

    pipeline = training_pipeline(config.data, config.model, config.dataset("train"))
    producer = ProducerServer(pipeline, config.data, f"{host}:{port}", token, certificate)
    print(f"listening on {host}:{producer.port}", flush=True)
    producer.serve()
    return 0


def _read_certificate(arguments: ServeDataArguments) -> tuple[bytes, bytes] | None:
    """Certificate and key, both PEM; None without the flags."""
    from data.errors import DataError

    paths = (arguments.tls_certificate, arguments.tls_key)
    if not any(paths):
        return None
    if not all(paths):
        raise DataError("TLS needs both --tls_certificate and --tls_key; one of them is missing")
    try:
        certificate, key = (pathlib.Path(path).read_bytes() for path in paths)
    except OSError as error:
        raise DataError(f"--tls_certificate or --tls_key cannot be read: {error}") from error
    return certificate, key


COMMAND = cli.Command(
    name="mmjax.serve_data",
    summary="Makes batches for trainers on a host without accelerators.",
    examples=("--gin_file=train.gin --host=0.0.0.0 --port=7070 --token_file=token",),
    arguments=ServeDataArguments,
    prepare=prepare,
)
