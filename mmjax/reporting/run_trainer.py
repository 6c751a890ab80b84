"""The trainer of the command `mmjax.train` and of the Python interface, which writes all files of a run's workdir."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Sequence

import jax
import numpy as np

from configs.common.errors import UserError
from configs.common.short_repr import cut
from configs.common.whole_files import write_whole
from data.packing.global_batch import GlobalBatch
from mmjax.generation.sample_log import SampleLog
from mmjax.models.structure.parameters import on_first_device
from mmjax.planning.automatic import PredictedStep, compare_prediction
from mmjax.reporting.run_page import write_report
from mmjax.training.activations import layer_activations
from mmjax.training.batches import open_batches
from mmjax.training.config import TrainConfig
from mmjax.training.engine.engine import HostBatch
from mmjax.training.evaluation import AnswerScore
from mmjax.training.metrics.activity import COMPILING_STEP, ShowsActivities, display_call
from mmjax.training.metrics.interface import MetricsWriter
from mmjax.training.metrics.progress import ProgressDisplay
from mmjax.training.steps import StepResult
from mmjax.training.summary import SUMMARY_FILE, record_start, run_summary
from mmjax.training.train_loop import TrainResult
from mmjax.training.trainer import Trainer
from sharding.plans.plan import Plan


class RunTrainer(Trainer):
    """A configured run on a plan.

        trainer = mmjax.Trainer(config, workdir="runs/short")
        trainer.step()           # one step
        trainer.timeline()       # one step, and when each of its ops ran
        trainer.gradients()      # of the next batch, which stays the next
        trainer.activations()    # of its layers, by name
        trainer.fit()            # all steps that are left, then the evaluation

    With a workdir, `fit` writes the files of `python -m mmjax.train` there (docs/how_to/runs.md): metrics, sample
    answers, the timeline of a step, checkpoints, a summary and the page `report.html`. Only the gin configuration is
    missing.

    Args:
        config: The run.
        plan: The placement of the model; by default the configured plan.
        workdir: Folder of the run; None to write nothing.
        resume: Whether to continue from the newest whole checkpoint.
        remark: For the summary and the page: why the plan is not the configured one, or what else it was made for.
        prediction: For the summary: the predicted step, to be compared with the measured ones. Rows are ordered by its
            profile (`TrainConfig.reordering`).

    See `mmjax.training.training_run.TrainingRun` for attributes and errors.
    """

    def __init__(
        self,
        config: TrainConfig,
        plan: Plan | None = None,
        workdir: str | os.PathLike[str] | None = None,
        resume: bool = False,
        *,
        remark: str = "",
        prediction: PredictedStep | None = None,
    ) -> None:
        super().__init__(config, plan, workdir, resume, profile=prediction.profile if prediction else None)
        self._remark, self._prediction = remark, prediction
        self._has_stepped = False
        self._resumed_from = self.steps_done if resume else None

    def __repr__(self) -> str:
        plan, workdir = self.engine.plan, f", workdir {str(self.workdir)!r}" if self.workdir else ""
        units = ", ".join(unit.name for unit in plan.units)
        steps = f"step {self.steps_done} of {self.config.steps}"
        return cut(f"Trainer({steps}, on {plan.device_count} devices: {units}{workdir})")

    def step(self) -> StepResult:
        """See `mmjax.training.trainer.Trainer.step`; a first step that takes long shows its progress."""
        if self._has_stepped:
            return super().step()
        with display_call(jax.process_index() == 0) as display:
            display.show(COMPILING_STEP, 0, 1)
            result = super().step()
        self._has_stepped = True
        return result

    def evaluate(
        self, progress: ShowsActivities | None = None, stop_requested: Callable[[], bool] = lambda: False
    ) -> AnswerScore | None:
        """See `mmjax.training.trainer.Trainer.evaluate`; shows progress on standard error unless told otherwise."""
        with display_call(jax.process_index() == 0) as display:
            return super().evaluate(progress or display, stop_requested)

    def fit(
        self,
        progress: ProgressDisplay | None = None,
        metrics: MetricsWriter | None = None,
        on_evaluation: Callable[[Trainer], None] | None = None,
    ) -> TrainResult:
        """See `mmjax.training.trainer.Trainer.fit`; writes the summary and the page of the run at its end."""
        config, workdir, first = self.config, self.workdir, jax.process_index() == 0
        if workdir is None:
            return super().fit(progress, metrics, on_evaluation)
        if first:
            record_start(workdir, self.steps_done, config.steps, self._remark, self._passed_over)
        samples = SampleLog(workdir, config.sample_questions, config.sample_images, self.steps_done)

        def sample_and_call(trainer: Trainer) -> None:
            samples(trainer)
            if on_evaluation:
                on_evaluation(trainer)

        result = super().fit(progress, metrics, sample_and_call)
        if first:
            summary = run_summary(result, self.engine.plan, config.model.backbone.name, self._remark) | {
                "prediction": compare_prediction(self._prediction, workdir),
                "best_checkpoint": self._best_checkpoint(),
                "resumed_from": self._resumed_from,
                "passed_over": list(self._passed_over),
            }
            try:
                write_whole(workdir / SUMMARY_FILE, json.dumps(summary, indent=2) + "\n")
                write_report(workdir, config)
            except OSError as error:
                reason = error.strerror or error
                raise UserError(
                    f"the run is done and saved, but its {SUMMARY_FILE} and page cannot be written to {workdir} "
                    f"({reason}); make room and run the same command with --resume"
                ) from error
        return result

    # ------------------------------------------------------------------ activations

    def activations(
        self, names: str | Sequence[str] = "*", batch: GlobalBatch | HostBatch | None = None
    ) -> dict[str, np.ndarray]:
        """Returns the outputs of layers for a batch, by name, with the rows of the batch first.

            trainer.activations("backbone/blocks/*")["backbone/blocks/002"]  # [rows, tokens, width]

        Names are as in `parameters()`, `module/piece/layer`; the output of a module's last layer also names the module
        that takes it, as in `vision/projector/000>backbone`. All of the model runs on this process's first device.

        Args:
            names: A name, or a pattern (`fnmatch`), or several.
            batch: The batch, or its arrays as they are packed; the next one by default, which stays the next.

        Raises:
            UserError: A name matches no layer, or other processes hold some of the parameters.
        """
        return self._layer_activations(names, batch, gradients=False)

    def activation_gradients(
        self, names: str | Sequence[str] = "*", batch: GlobalBatch | HostBatch | None = None
    ) -> dict[str, np.ndarray]:
        """Returns the gradients of the sum of the losses with respect to `activations`, by the same names."""
        return self._layer_activations(names, batch, gradients=True)

    def _layer_activations(
        self, names: str | Sequence[str], batch: GlobalBatch | HostBatch | None, gradients: bool
    ) -> dict[str, np.ndarray]:
        parameters = on_first_device(self.parameters())
        used_batch = self._packed_batch() if batch is None else batch
        seed_and_step = np.array([self.config.seed, self.steps_done], np.int32)
        arrays = {
            module: {**module_arrays, "seed_and_step": seed_and_step}
            for module, module_arrays in (
                used_batch.arrays if isinstance(used_batch, GlobalBatch) else used_batch
            ).items()
        }
        return layer_activations(
            self.config.model,
            parameters,
            jax.device_put(arrays, jax.local_devices()[0]),
            patterns=(names,) if isinstance(names, str) else tuple(names),
            gradients=gradients,
        )

    def _packed_batch(self) -> GlobalBatch:
        """Returns the whole next batch, its items in the rows in which they are packed, whatever rows the plan has."""
        data = dataclasses.replace(self.config.data, workers=0)
        config = dataclasses.replace(self.config, data=data, producers=())
        with contextlib.closing(open_batches(config, config.dataset("train"), self._row_order)) as batches:
            batches.set_state(self._data_state())
            return next(batches)

    # ------------------------------------------------------------------ the summary

    @property
    def _passed_over(self) -> tuple[str, ...]:
        return self.checkpoints.passed_over if self.checkpoints else ()

    def _best_checkpoint(self) -> dict[str, int | float] | None:
        """Step and held-out accuracy of the best checkpoint in the workdir, for the summary."""
        best = self.checkpoints and self.checkpoints.best()
        return {"step": best[0], "accuracy": round(best[1], 4)} if best else None
