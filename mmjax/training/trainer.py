"""The trainer, a run as users hold it: trained step by step or to its end. `mmjax.Trainer` derives from it."""

import contextlib
import functools
from collections.abc import Callable

import jax

from mmjax.training.engine.stage_layouts import trees_by_module
from mmjax.training.engine.step_recorder import StepRecorder
from mmjax.training.metrics.interface import MetricsWriter
from mmjax.training.metrics.parameters import flat_parameters
from mmjax.training.metrics.progress import ProgressDisplay, make_progress
from mmjax.training.metrics.step_timer import StepTimer
from mmjax.training.metrics.writers import NullWriter, open_metrics_writer
from mmjax.training.refused_batches import saving_before_a_refused_batch
from mmjax.training.steps import StepResult
from mmjax.training.train_loop import TrainLoop, TrainResult
from mmjax.training.training_run import TrainingRun
from sharding.simulation.timeline import Timeline
from sharding.trees import Tree


class Trainer(TrainingRun):
    """A configured run on a plan.

        trainer = Trainer(config)
        trainer.step()           # one step
        trainer.timeline()       # one step, and when each of its ops ran
        trainer.gradients()      # of the next batch, which stays the next
        trainer.fit()            # all steps that are left, then the evaluation

    See `TrainingRun` for arguments, attributes and errors.
    """

    def parameters(self) -> Tree:
        """The parameters `{module: {piece: {layer: {...}}}}`, float32, sharded as their stages hold them."""
        return trees_by_module(self.state.master_weights)

    def gradients(self) -> tuple[Tree, dict[str, float]]:
        """Returns the gradients of the next batch by module, piece and layer, and its losses; the batch stays next."""
        batch, _ = self._peek_batch()
        placed = self.engine.place_batch(batch.arrays, self.steps_done)
        gradients, summary = self.engine.executor.gradients(self.state, placed)
        return trees_by_module(gradients), self.engine.losses_by_name(summary)

    def step(self) -> StepResult:
        """Trains one step, and waits for it.

        Raises:
            NonFiniteStepError: Names the step and its samples.
            PhaseCapacityError: The plan's rows do not hold the next batch; the state before it is saved.
        """
        with self.heartbeat.phase("training"), saving_before_a_refused_batch(self):
            return self.finish_step(self.dispatch_step(StepTimer()))

    def timeline(self) -> Timeline:
        """Trains one step as `step` does, and returns when each of its ops ran; notebooks show a drawing.

        Ends of ops are measured, starts derived (`StepRecorder`). The first step of a trainer compiles.

        Raises:
            NonFiniteStepError: Names the step and its samples.
            StepNotRecordedError: The recording failed on some process; the step is trained.
        """
        recorder = StepRecorder(self.engine)
        with self.heartbeat.phase("training"), saving_before_a_refused_batch(self):
            self.finish_step(self.dispatch_step(StepTimer(), recorder))
            return recorder.timeline()

    def fit(
        self,
        progress: ProgressDisplay | None = None,
        metrics: MetricsWriter | None = None,
        on_evaluation: Callable[["Trainer"], None] | None = None,
    ) -> TrainResult:
        """Trains the steps that are left, evaluates, and leaves a checkpoint if there is a workdir.

        The first SIGTERM or Ctrl-C lets the step end and saves; a second Ctrl-C leaves at once.

        Args:
            progress: Shows how far the run is; by default on standard output. `NullProgress()` shows nothing.
            metrics: Keeps each window of steps; by default in the files of the workdir, and by `TrainConfig.writers`.
            on_evaluation: Called after every evaluation.

        Raises:
            NonFiniteStepError: Names the step and its samples.
            PhaseCapacityError: The plan's rows do not hold a batch; the state before it is saved.
            CommunicationError: Two stages cannot exchange arrays; names them.
            CheckpointNotWrittenError: The last checkpoint, or the checkpoint after a stop signal, was not written.
        """
        with contextlib.ExitStack() as opened:
            if progress is None:
                progress = make_progress(
                    self.config.steps, self.steps_done, self.config.log_interval, jax.process_index() == 0
                )
                opened.callback(progress.close)
            if metrics is None:
                metrics = self._open_metrics()
                opened.callback(metrics.close)
            evaluated = on_evaluation and functools.partial(on_evaluation, self)
            return TrainLoop(self, progress, metrics, evaluated).run()

    def _open_metrics(self) -> MetricsWriter:
        """Opens the metrics writers of the workdir; without a workdir, a writer that keeps nothing."""
        if self.workdir is None:
            return NullWriter()
        config = self.config
        return open_metrics_writer(
            self.workdir, self.steps_done, jax.process_index() == 0, config.writers, flat_parameters(config)
        )
