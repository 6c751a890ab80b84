"""The configuration of a training run: bound in gin files, checked here, and read without jax.

`TrainingRun`, planning and every command read it.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable

import configs
from configs.architectures import ModelConfig
from configs.common.checks import require_types
from configs.common.errors import UserError
from configs.common.short_repr import short_repr
from configs.optimizer import OptimizerConfig
from configs.training_choices import PRETRAINED_CHANGES
from data.data_config import DataConfig
from data.datasets.dataset import Dataset
from data.text.byte_tokenizer import ByteTokenizer
from data.text.tokenizer import Tokenizer
from data.text.word_tokenizer import WordTokenizer
from mmjax.training.checkpoints.retention import Retention, check_remote_folder
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.metrics.interface import WriterFactory
from mmjax.training.rescheduling.settings import Rescheduling
from sharding.balancing.reordering.row_reorderer import REORDERING_POLICIES
from sharding.plans.plan import Plan, single_device_plan
from sharding.specs.modules import module_graph

LONGEST_HEARTBEAT_TIMEOUT = 100
"""Seconds: a process is lost after half of it, before jax aborts all others after 60 seconds and names none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run.

    Attributes:
        dataset: Makes the data set of a split, `train` or `test`.
        model: The model.
        data: The data configuration, by which samples become batches.
        optimizer: The algorithm, learning rates and their schedules, for the model and for parts of it.
        plan: A plan file, from here or from the configs package; `auto` to measure and plan; empty for one device.
        require_plan: Whether fewer devices than the plan needs are an error; if not, the run uses one device.
        steps: Steps of the whole run.
        seed: Seed of initial values, and of noise and diffusion times; the order of samples has `DataConfig.seed`.
        pretrained_weights: Parts that start from published weights and not from the seed: pairs (part, folder), with
            the name of a part, such as `backbone`, or `model` for all that the folder has (docs/how_to/weights.md). A
            resumed run starts from its checkpoint instead.
        pretrained_changes: Fields of the backbone that differ on purpose from the published backbone's fields, of
            `PRETRAINED_CHANGES`: `vocabulary`, for more rows, which start as the mean of the published rows, and
            `rope_base` and `local_rope_base`.
        trainable: Parts that train, by name, or `all`, or `projectors`.
        transport: Transport of hops: `auto`, `device_put` or `ppermute`.
        reordering: Policy that orders the rows of a step for the plan, a key of `REORDERING_POLICIES`; `none` keeps the
            order in which they are packed.
        producers: `host:port` of every producer (`python -m mmjax.serve_data`) that makes this run's batches, or
            `grpc+tls://host:port`; empty to make them in this process. The environment variable MMJAX_SERVICE_TOKEN
            holds the token that producers expect.
        producer_timeout: Seconds that producers may take for a step, and that all of them may be silent before the run
            ends with an error.
        checkpoint_interval: Steps between checkpoints; one is always written at the end.
        keep_checkpoints: How many of the newest checkpoints are kept.
        keep_checkpoints_every: Checkpoints of multiples of this number of steps are kept too; 0 for none.
        keep_best_checkpoints: How many checkpoints with the highest held-out accuracy are kept too. It needs steps at
            which the run evaluates and saves.
        remote_checkpoints: Folder to which each whole checkpoint is copied in the background, and from which a run
            resumes if its own are gone: a plain folder, or one of `gs://` or `s3://`; empty for none.
        keep_remote_checkpoints: How many of the newest copies are kept there; the other rules hold there too.
        evaluation_interval: Steps between evaluations on the split `test`; 0 for one at the end alone.
        sample_questions: Held-out questions that are answered at every evaluation, for the run's page; 0 for none.
        sample_images: Images that are generated at every evaluation from held-out descriptions; 0 for none.
        rescheduling: How often ops are timed, to compute their order anew from their measured seconds; None for never.
        log_interval: Steps between lines of metrics.
        heartbeat_timeout: Seconds within which a process that dies or freezes ends a run of several processes
            (`mmjax.training.heartbeat`).
        progress_timeout: Seconds after which a run of several processes ends if none of them finishes anything: a step,
            a program that compiles, a batch of an evaluation, a save.
        writers: Metrics writers beside the files of the workdir, such as `(@trackers.WandbWriter,)` of
            `mmjax.training.metrics.trackers`, or a class of one's own (`mmjax.training.metrics.interface`).
    """

    dataset: Callable[[str], Dataset]
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    plan: str = ""
    require_plan: bool = True
    steps: int = 1000
    seed: int = 0
    pretrained_weights: tuple[tuple[str, str], ...] = ()
    pretrained_changes: tuple[str, ...] = ()
    trainable: tuple[str, ...] = ("all",)
    transport: str = "auto"
    reordering: str = "none"
    producers: tuple[str, ...] = ()
    producer_timeout: float = 120.0
    checkpoint_interval: int = 1000
    keep_checkpoints: int = 2
    keep_checkpoints_every: int = 0
    keep_best_checkpoints: int = 0
    remote_checkpoints: str = ""
    keep_remote_checkpoints: int = 2
    evaluation_interval: int = 0
    sample_questions: int = 4
    sample_images: int = 2
    rescheduling: Rescheduling | None = None
    log_interval: int = 10
    heartbeat_timeout: float = 60.0
    progress_timeout: float = 3600.0
    writers: tuple[WriterFactory, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("steps", "checkpoint_interval", "keep_checkpoints", "keep_remote_checkpoints", "log_interval"):
            if getattr(self, name) < 1:
                raise UserError(f"TrainConfig.{name} is {getattr(self, name)}; it must be at least 1")
        for name in (
            "keep_checkpoints_every",
            "keep_best_checkpoints",
            "evaluation_interval",
            "seed",
            "sample_questions",
            "sample_images",
        ):
            if getattr(self, name) < 0:
                raise UserError(f"TrainConfig.{name} is {getattr(self, name)}; it must not be negative")
        if not 1 <= self.heartbeat_timeout <= LONGEST_HEARTBEAT_TIMEOUT:
            raise UserError(
                f"TrainConfig.heartbeat_timeout is {self.heartbeat_timeout}; it must be between 1 and "
                f"{LONGEST_HEARTBEAT_TIMEOUT} seconds: jax itself would end the run soon after"
            )
        if not 1 <= self.progress_timeout < float("inf"):
            raise UserError(f"TrainConfig.progress_timeout is {self.progress_timeout}; it must be at least 1 second")
        if self.reordering not in REORDERING_POLICIES:
            raise UserError(
                f"TrainConfig.reordering is {self.reordering!r}; choose one of {', '.join(REORDERING_POLICIES)}"
            )
        if unknown := [name for name in self.pretrained_changes if name not in PRETRAINED_CHANGES]:
            raise UserError(
                f"TrainConfig.pretrained_changes names {', '.join(unknown)}; what may differ from published weights is "
                f"{', '.join(PRETRAINED_CHANGES)}"
            )
        check_remote_folder(self.remote_checkpoints)
        if self.keep_best_checkpoints and not self.evaluation_interval:
            raise UserError(
                f"TrainConfig.keep_best_checkpoints is {self.keep_best_checkpoints} and evaluation_interval is 0: only "
                "steps that are evaluated have an accuracy; set evaluation_interval, best to checkpoint_interval"
            )
        self.optimizer.check_warmup(self.steps)

    @property
    def retention(self) -> Retention:
        """Which checkpoints are kept in the workdir."""
        return Retention(
            newest=self.keep_checkpoints, every=self.keep_checkpoints_every, best=self.keep_best_checkpoints
        )

    @property
    def remote_retention(self) -> Retention:
        """Which checkpoints are kept in the remote folder."""
        return dataclasses.replace(self.retention, newest=self.keep_remote_checkpoints)

    @property
    def engine_settings(self) -> EngineSettings:
        """Options of the engine other than the model and the plan."""
        return EngineSettings(
            optimizer=self.optimizer,
            steps=self.steps,
            seed=self.seed,
            trainable=self.trainable,
            transport=self.transport,
            quadratic_cost_weights=self.data.quadratic_cost_weights,
        )


def tokenizer_mismatches_backbone(config: TrainConfig, tokenizer: Tokenizer) -> bool:
    """Whether a backbone that starts from published weights gets tokens of a tokenizer that cannot be its own."""
    pretrained = {part for part, _ in config.pretrained_weights}
    starts_published = not pretrained.isdisjoint({"model", config.model.backbone.name})
    return starts_published and isinstance(tokenizer, WordTokenizer | ByteTokenizer)


def find_plan_file(name: str) -> pathlib.Path:
    """The path of a plan file: as given, else in the configs package; raises UserError if neither exists."""
    for path in (pathlib.Path(name), pathlib.Path(configs.__file__).parent / name):
        with contextlib.suppress(OSError, ValueError):  # a name that no file can have
            if path.exists():  # a folder is refused by name when it is read
                return path
    raise UserError(f"there is no plan file {name}, neither here ({pathlib.Path.cwd()}) nor in the configs package")


def load_configured_plan(config: TrainConfig, devices: int) -> tuple[Plan, str]:
    """Returns the plan to run on `devices` devices, and a remark for the user where it is not the configured one.

    Raises:
        UserError: There is no such file.
        PlanError: The file holds no valid plan.
    """
    single_device = single_device_plan(module_graph(config.model))
    if not config.plan:
        return single_device, ""
    path = find_plan_file(config.plan)
    plan = Plan.load(path)
    needed = plan.devices_needed
    if needed <= devices or config.require_plan:
        return plan, ""
    return (
        single_device,
        f"{path.name} needs {needed} devices and there are {devices}: everything runs on one device instead",
    )
