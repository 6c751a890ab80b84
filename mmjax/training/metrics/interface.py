"""The interface of metrics writers: their constructor's argument, and their methods.

`TrainConfig.writers` takes classes of the user's own: made from a `RunStart`, with the methods of `MetricsWriter`.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from mmjax.training.metrics.parameters import Parameter


@runtime_checkable
class MetricsWriter(Protocol):
    """Keeps the numbers of a run."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Keeps numbers of a step, by name. Steps never decrease; a step may come twice, with other names.

        After an OSError, as of a full disk, the run goes on and passes the same numbers again before the next ones.
        """

    def close(self) -> None:
        """Flushes and closes the file or connection to which the numbers are written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStart:
    """The start of a run, from which metrics writers are made.

    Attributes:
        workdir: Folder of the run.
        resumed_step: The step of the checkpoint that the run continues from; 0 for a new run.
        parameters: The configuration as flat names and values, such as `optimizer.learning_rate`.
    """

    workdir: pathlib.Path
    resumed_step: int = 0
    parameters: Mapping[str, Parameter] = dataclasses.field(default_factory=dict)


WriterFactory = Callable[[RunStart], MetricsWriter]
"""A class of metrics writers, or another function that makes one."""
