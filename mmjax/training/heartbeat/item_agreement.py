"""Agreement of processes on the row and place of every item in units with rows of their own, before a step begins.

By these tables activations are exchanged, and each process decides which microbatches run in a unit and with which
capacity. Processes that decided differently would wait for each other inside the step.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from configs.common.errors import UserError
from data.packing.batch_iterator import BatchIterator
from data.packing.dealt_phases import DealtPhases
from data.packing.global_batch import GlobalBatch
from data.packing.phases.item_tables import PhaseCapacityError
from mmjax.training.heartbeat.liveness import MOST_NAMED
from mmjax.training.heartbeat.step_digests import divergent_processes
from sharding.runtime.coordination import judge_texts


class ItemDisagreementError(UserError):
    """Processes have dealt the items of a batch differently; the message names the minority, or all processes."""


def agreed_batch(batches: Iterator[GlobalBatch], phases: DealtPhases, patience: float) -> GlobalBatch:
    """Returns the next batch, once all processes have dealt its items alike; they call this together.

    It raises an error of dealing in all processes, so that they may handle it together.

    Args:
        batches: The batches.
        phases: The modules with rows of their own; without them nothing is compared.
        patience: Seconds to wait for the other processes.

    Raises:
        StopIteration: There is none.
        PhaseCapacityError: The items do not fit into the rows of a phase, in any process.
        ItemDisagreementError: Processes have dealt them differently, or they fit in some processes alone.
        MissingProcessError: A process does not take part within `patience`.
    """
    if not phases.phases:
        return next(batches)
    try:
        batch = next(batches)
    except PhaseCapacityError as error:
        _compare("they do not fit", patience)  # producers may give processes different reasons
        raise error
    _compare(f"{phases.digest(batch.arrays):08x}", patience)
    return batch


def agreed_batches(batches: Iterable[GlobalBatch], phases: DealtPhases, patience: float) -> Iterator[GlobalBatch]:
    """Yields all batches, each by `agreed_batch`."""
    remaining = iter(batches)
    with contextlib.suppress(StopIteration):
        while True:
            yield agreed_batch(remaining, phases, patience)


def agreed_batch_and_state(
    batches: BatchIterator, phases: DealtPhases, patience: float
) -> tuple[GlobalBatch, dict[str, Any]]:
    """As `agreed_batch`, with the data state before the batch, which stays the state where an error is raised."""
    state = batches.get_state()
    try:
        return agreed_batch(batches, phases, patience), state
    except (PhaseCapacityError, ItemDisagreementError):
        batches.set_state(state)
        raise


def _compare(dealt: str, patience: float) -> None:
    """Raises ItemDisagreementError if processes have dealt a batch differently."""
    if disagreement := judge_texts("a batch whose items are dealt", dealt, describe_disagreement, patience):
        raise ItemDisagreementError(disagreement)


def describe_disagreement(digests: Mapping[int, str]) -> str:
    """Names the processes whose digest of dealt items differs from the majority's; empty if all agree."""
    divergent, most = divergent_processes(digests)
    if not divergent:
        return ""
    named = ", ".join(map(str, divergent[:MOST_NAMED]))
    more = f", and {len(divergent) - MOST_NAMED} more" if len(divergent) > MOST_NAMED else ""
    who = f"process {named} has" if len(divergent) == 1 else f"processes {named}{more} have"
    if most:
        said = f"{who} dealt the items of the next batch otherwise than {most} of {len(digests)} processes"
    else:
        said = f"{who} not dealt the items of the next batch alike"
    return f"{said}: their sizes of samples differ; give all processes the same data set and configuration"
