"""The checks of all processes of a run at its start: each learns the results of the others, and all end together.

`python -m mmjax.train` runs them before it makes the trainer.
"""

import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping

import jax

from configs.common.errors import DEVICE_FAILED, PROCESS_LOST, UserError
from mmjax.training.start_checks.comparison import (
    DifferentProcessError,
    StartReport,
    describe_clocks,
    describe_differences,
    describe_failures,
)
from mmjax.training.start_checks.device_check import check_devices
from sharding.runtime.coordination import exchange_texts, wait_for_processes

_LOG = logging.getLogger(__name__)


class DeviceCheckError(UserError):
    """A device of this process computes or stores wrongly; the message names it."""

    exit_code = DEVICE_FAILED


class OtherDeviceCheckError(UserError):
    """A device of another process computes or stores wrongly; the message names process, host and device."""

    exit_code = PROCESS_LOST


def check_start(identity: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
    """Checks the devices of all processes, and that the processes are alike; warns of clocks that are apart.

    Args:
        identity: Texts that must be alike in all processes, by name.
        clock: Seconds of this host's clock.

    Raises:
        DeviceCheckError: A device of this process is wrong.
        OtherDeviceCheckError: A device of another process is wrong.
        DifferentProcessError: The processes differ; names the processes and the texts.
    """
    failure = check_devices(jax.local_devices())
    if failure:
        # A launcher ends all processes when one of them does; this one's exit code says that it is the cause.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reports = exchange_reports("start", identity, failure, clock)
    if failure:
        raise DeviceCheckError(f"{describe_failures({jax.process_index(): reports[jax.process_index()]})}")
    others = describe_failures(reports)
    if others:
        raise OtherDeviceCheckError(f"{others}; this process ends with it: continue without that host")
    if jax.process_index() == 0:
        apart = describe_clocks(reports)
        if apart:
            _LOG.warning("%s", apart)
    refuse_differences(reports)


def check_alike(subject: str, identity: Mapping[str, str]) -> None:
    """Compares texts of all processes again.

    Args:
        subject: Names the comparison.
        identity: Texts that must be alike in all processes, by name.

    Raises:
        DifferentProcessError: The processes differ; names the processes and the texts.
    """
    if jax.process_count() > 1:
        refuse_differences(exchange_reports(subject, identity, "", time.time))


def refuse_differences(reports: Mapping[int, StartReport]) -> None:
    """Raises DifferentProcessError unless all processes are alike."""
    differences = describe_differences(reports)
    if differences:
        raise DifferentProcessError(
            f"the processes of this run differ: {differences}. Give all hosts the same installation and command line"
        )


def exchange_reports(
    subject: str, identity: Mapping[str, str], failure: str, clock: Callable[[], float]
) -> dict[int, StartReport]:
    """Returns the reports of all processes, including this one; waits until all have written their reports."""
    wait_for_processes(f"the reports on the {subject}")
    report = StartReport(host=socket.gethostname(), time=clock(), identity=identity, failure=failure)
    texts = exchange_texts(f"comparing the {subject}", report.to_json())
    return {process: StartReport.from_json(text, process) for process, text in sorted(texts.items())}
