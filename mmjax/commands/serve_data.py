"""`python -m mmjax.serve_data`: a producer, which makes batches for trainers on a host without accelerators.

    python -m mmjax.serve_data --gin_file=train.gin --host=0.0.0.0 --port=7070 --token_file=token

The configuration is the trainer's own, whose `TrainConfig.producers` names the addresses of the producers. Start as
many as preprocessing needs, several on a host with many cores. They do not communicate with each other, and
any may end at any time.
"""

import logging
import pathlib

from absl import flags

from mmjax import cli

_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen on; any but loopback requires --token_file.")
_PORT = flags.DEFINE_integer("port", 7070, "Port to listen on; 0 for a free one.", lower_bound=0, upper_bound=65535)
_TOKEN_FILE = flags.DEFINE_string("token_file", "", "File with the token that trainers must send.")
_TLS_CERTIFICATE = flags.DEFINE_string("tls_certificate", "", "PEM file of a certificate; serves TLS, with --tls_key.")
_TLS_KEY = flags.DEFINE_string("tls_key", "", "PEM file of the certificate's key.")


def main() -> int:
    """Prints the address once it listens, then serves until SIGTERM or SIGINT."""
    cli.parse_gin("quickstart.gin")
    from data.packing.pipeline import training_pipeline
    from data.producers.server import ProducerServer, is_loopback, read_token
    from mmjax.training.config import TrainConfig

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    token = read_token(_TOKEN_FILE.value, _HOST.value)
    certificate = _read_certificate()
    if not certificate and not is_loopback(_HOST.value):
        logging.warning("without --tls_certificate the token and all data are sent unencrypted")
    config = cli.configured(TrainConfig)
    pipeline = training_pipeline(config.data, config.model, config.dataset("train"))
    producer = ProducerServer(pipeline, config.data, f"{_HOST.value}:{_PORT.value}", token, certificate)
    print(f"listening on {_HOST.value}:{producer.port}", flush=True)
    producer.serve()
    return 0


def _read_certificate() -> tuple[bytes, bytes] | None:
    """Certificate and key, both PEM; None without the flags."""
    from data.errors import DataError

    paths = (_TLS_CERTIFICATE.value, _TLS_KEY.value)
    if not any(paths):
        return None
    if not all(paths):
        raise DataError("TLS needs both --tls_certificate and --tls_key; one of them is missing")
    try:
        certificate, key = (pathlib.Path(path).read_bytes() for path in paths)
    except OSError as error:
        raise DataError(f"--tls_certificate or --tls_key cannot be read: {error}") from error
    return certificate, key
