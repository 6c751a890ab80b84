"""Producers in this process or started as commands, on loopback and free ports, for a few images of easy-VQA."""

import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.packing.pipeline import training_pipeline
from data.producers.server import ProducerServer
from tests.small_vqa import SmallVQA

MODEL = ModelConfig()
CONFIG = DataConfig(rows=4, mixture=(("vqa", 1.0), ("description", 0.5), ("text", 0.2)), seed=3, window=64)
GIN = """
from __gin__ import dynamic_registration
from configs import architectures
from data import data_config
from mmjax.training import config
from tests import small_vqa
config.TrainConfig.dataset = @small_vqa.SmallVQA
config.TrainConfig.data = @data_config.DataConfig()
data_config.DataConfig.rows = 4
data_config.DataConfig.mixture = (("vqa", 1.0), ("description", 0.5), ("text", 0.2))
data_config.DataConfig.seed = 3
data_config.DataConfig.window = 64
"""
"""The same configuration as `MODEL` and `CONFIG`."""


@contextlib.contextmanager
def serving(
    token: str = "", port: int = 0, certificate: tuple[bytes, bytes] | None = None
) -> Iterator[tuple[ProducerServer, str]]:
    """A producer in this process, with its address."""
    pipeline = training_pipeline(CONFIG, MODEL, SmallVQA("train"))
    with ProducerServer(pipeline, CONFIG, f"127.0.0.1:{port}", token, certificate) as producer:
        yield producer, f"127.0.0.1:{producer.port}"


def start_producer(gin: pathlib.Path, *arguments: str) -> subprocess.Popen:
    """Starts a producer, on a free port unless the arguments name another; it may not be listening yet."""
    command = [sys.executable, "-m", "mmjax.serve_data", f"--gin_file={gin}", "--port=0", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def address_of(process: subprocess.Popen) -> str:
    """Waits until a producer listens; its address."""
    words = process.stdout.readline().split()
    assert words[:2] == ["listening", "on"], words
    return words[2]


@contextlib.contextmanager
def running(gin: pathlib.Path, *arguments: str, count: int = 1) -> Iterator[list[tuple[subprocess.Popen, str]]]:
    """`count` listening producers with their addresses; they are ended with SIGKILL."""
    processes = [start_producer(gin, *arguments) for _ in range(count)]
    try:
        yield [(process, address_of(process)) for process in processes]
    finally:
        for process in processes:
            end(process)


def end(process: subprocess.Popen) -> None:
    """Ends a producer with SIGKILL."""
    process.kill()
    process.wait()
    process.stdout.close()
