"""Agreement of processes on which item lies where in rows of their own, before a step begins.

By these tables activations are exchanged, and each process decides which microbatches run in a unit and with which
capacity. Processes that decided otherwise would wait for each other inside the step.
"""

from collections.abc import Mapping

from configs.errors import UserError
from data.packing.dealt_phases import DealtPhases
from data.packing.global_batch import GlobalBatch
from mmjax.training.heartbeat.liveness import MOST_NAMED
from mmjax.training.heartbeat.step_digests import divergent_processes
from sharding.runtime.coordination import judge_texts


class ItemDisagreementError(UserError):
    """Processes have dealt the items of a batch otherwise; the message names those that differ from most, or all."""


def agreed_items(batch: GlobalBatch, phases: DealtPhases, patience: float) -> GlobalBatch:
    """A dealt batch, as it is, once all processes have dealt its items alike; they call this together.

    Args:
        batch: The batch.
        phases: The modules with rows of their own; without them nothing is compared.
        patience: Seconds to wait for the other processes.

    Raises:
        ItemDisagreementError: They have not.
        MissingProcessError: A process does not come.
    """
    if not phases.phases:
        return batch
    digest = f"{phases.digest(batch.arrays):08x}"
    if disagreement := judge_texts("a batch whose items are dealt", digest, describe_disagreement, patience):
        raise ItemDisagreementError(disagreement)
    return batch


def describe_disagreement(digests: Mapping[int, str]) -> str:
    """Which processes have dealt items otherwise than most, by the digest of each; empty if all agree."""
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
