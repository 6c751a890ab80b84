"""Agreement of processes on which item lies where in rows of their own, before a step begins.

By these tables activations are exchanged, and each process decides which microbatches run in a unit and with which
capacity. Processes that decided otherwise would wait for each other inside the step.
"""

import collections

import jax

from configs.errors import UserError
from data.packing.dealt_phases import DealtPhases
from data.packing.global_batch import GlobalBatch
from sharding.runtime.coordination import exchange_texts

_MOST_NAMED = 5


class ItemDisagreementError(UserError):
    """Processes have dealt the items of a batch otherwise; the message names those that differ from most."""


def agreed_items(batch: GlobalBatch, phases: DealtPhases) -> GlobalBatch:
    """A dealt batch, as it is, once all processes have dealt its items alike; they call this together.

    Args:
        batch: The batch.
        phases: The modules with rows of their own; without them, or with one process, nothing is compared.

    Raises:
        ItemDisagreementError: They have not.
        MissingProcessError: A process does not come.
    """
    if not phases.phases or jax.process_count() == 1:
        return batch
    said = exchange_texts("a batch whose items are dealt", f"{phases.digest(batch.arrays):08x}")
    (majority, most), *others = collections.Counter(said.values()).most_common()
    if not others:
        return batch
    differing = sorted(process for process, digest in said.items() if digest != majority)
    named = ", ".join(map(str, differing[:_MOST_NAMED])) + (", ..." if len(differing) > _MOST_NAMED else "")
    raise ItemDisagreementError(
        f"process {named} has dealt the items of the next batch otherwise than {most} of {len(said)} processes: it has "
        "other sizes of samples; give all processes the same data set and configuration"
    )
