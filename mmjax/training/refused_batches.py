"""Batches that do not fit into a plan's phase rows: the warning before a run, and the save before such a batch.

Whether a batch is refused is agreed on by all processes (`mmjax.training.heartbeat.item_agreement`) before anything of
its step is dispatched, so all of them save, and none waits for another that does not.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator

import jax

from data.packing.dealt_phases import DealtPhases
from data.packing.phases.item_tables import PhaseCapacityError
from mmjax.training.checkpoints.manager import CheckpointNotWrittenError
from mmjax.training.heartbeat.item_agreement import ItemDisagreementError
from mmjax.training.training_run import TrainingRun

_LOG = logging.getLogger(__name__)


def warn_of_small_capacities(dealt_phases: DealtPhases, rows: int) -> None:
    """Warns of units whose largest capacity does not suffice for every batch; process 0 alone does.

    Args:
        dealt_phases: The modules with rows of their own.
        rows: Rows of a global batch.
    """
    for phase in dealt_phases.phases.values() if jax.process_index() == 0 else ():
        sufficient = phase.sufficient(rows // dealt_phases.microbatches)
        if phase.largest < sufficient:
            _LOG.warning(
                "unit %s: the largest of its capacities, %d %s, does not suffice for any batch, which %d does; a "
                "microbatch that it does not hold ends the run: raise it, or add one, in the plan",
                phase.unit,
                phase.largest * phase.values_per_slot,
                phase.values,
                sufficient * phase.values_per_slot,
            )


@contextlib.contextmanager
def saving_before_a_refused_batch(run: TrainingRun, finish_steps: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Saves the state after the last step, if there is a workdir, when the block refuses a batch; names the step.

    Args:
        run: The run.
        finish_steps: Waits for the steps that are dispatched.
    """
    try:
        yield
    except (PhaseCapacityError, ItemDisagreementError) as error:
        finish_steps()
        done, saved = run.steps_done, ""
        if run.checkpoints:
            try:
                run.save()
                with run.heartbeat.phase("saving"):
                    run.checkpoints.wait()
                saved = f"; the state after step {done} is saved"
            except CheckpointNotWrittenError as not_written:
                saved = f"; {not_written}"
        raise type(error)(f"step {done + 1}: {error}{saved}") from error
