"""A run that faults hit: its launcher, its producers, and the files that are damaged for good."""

import contextlib
import dataclasses
import pathlib
import random
import subprocess
import sys
from collections.abc import Collection, Mapping
from types import MappingProxyType

from benchmarks.faults.audited_data import image_path
from benchmarks.faults.damage import damage_image
from benchmarks.faults.launched_run import LaunchedRun
from benchmarks.faults.training_run import STEPS, RunFolder
from mmjax.launching.environment import free_port
from mmjax.training.metrics.metrics_file import read_metrics

PRODUCERS = 2


@dataclasses.dataclass(frozen=True)
class Producer:
    """A process that makes batches (`mmjax serve_data`).

    Attributes:
        gin: Configuration of the run.
        port: Port of the loopback interface that it listens on.
        process: The process.
    """

    gin: pathlib.Path
    port: int
    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(cls, gin: pathlib.Path, port: int) -> "Producer":
        """Starts a producer; it listens some seconds later."""
        command = [sys.executable, "-m", "mmjax.serve_data", f"--gin_file={gin}", f"--port={port}"]
        log = gin.with_name(f"producer-{port}.log").open("ab")
        with log:
            return cls(gin, port, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def kill(self) -> None:
        """Ends the producer by SIGKILL."""
        self.process.kill()
        self.process.wait()


class DisturbedRun:
    """A run that is started, disturbed and started again until it is finished.

    Args:
        folder: Where its files are written.
        processes: How many processes it begins with.
        with_producers: Whether producers make its batches.
        late_images: Images that may be damaged, and the last step at which they surely were not read yet.
        damaged: Images that are damaged from the beginning.
    """

    def __init__(
        self,
        folder: RunFolder,
        processes: int,
        with_producers: bool = False,
        late_images: Mapping[int, int] = MappingProxyType({}),
        damaged: Collection[int] = (),
    ) -> None:
        self.folder, self.first_processes, self.with_producers = folder, processes, with_producers
        self.late_images = late_images
        self.damaged = set(damaged)
        self.producers: list[Producer] = []
        ports = [free_port() for _ in range(PRODUCERS)] if with_producers else []
        folder.write(processes, [f"127.0.0.1:{port}" for port in ports])
        for number in damaged:
            damage_image(self.image(number), random.Random(number))
        self.producers += [Producer.start(folder.gin, port) for port in ports]
        self.run = LaunchedRun(folder, processes)

    @property
    def changed_plan(self) -> bool:
        """Whether the run went on with fewer processes, and so on another plan."""
        return self.run.processes != self.first_processes

    @property
    def steps_done(self) -> int:
        """Number of steps in the run's metrics."""
        with contextlib.suppress(FileNotFoundError):
            return max((line["step"] for line in read_metrics(self.folder.workdir)), default=0)
        return 0

    def relaunch(self, processes: int) -> None:
        """Goes on with a new launcher, with so many processes and the plan for them."""
        self.run.kill()
        saved = any(path.name.isdigit() for path in self.folder.checkpoints.glob("*"))
        self.folder.write_gin(processes, [f"127.0.0.1:{producer.port}" for producer in self.producers])
        self.run = LaunchedRun(self.folder, processes, *(["--resume"] if saved else []))

    def restart_producer(self, number: int) -> None:
        """Starts a producer again on the port that it had."""
        ended = self.producers[number]
        ended.kill()
        self.producers[number] = Producer.start(ended.gin, ended.port)

    def image(self, number: int) -> pathlib.Path:
        """The file of one of its images."""
        return image_path(str(self.folder.images), number)

    def is_finished(self) -> bool:
        """Whether all steps are done and the launcher has ended with code 0."""
        return self.run.exit_code() == 0 and self.steps_done == STEPS

    def close(self) -> None:
        """Ends all processes that are left of the run."""
        self.run.kill()
        for producer in self.producers:
            producer.kill()

    def __enter__(self) -> "DisturbedRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
