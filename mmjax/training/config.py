"""What a training run is made of; bound in gin files, checked here."""

import dataclasses
import pathlib
from collections.abc import Callable

import configs
from configs.architectures import ModelConfig
from configs.errors import UserError
from configs.optimizer import OptimizerConfig
from data.data_config import DataConfig
from data.datasets.dataset import Dataset
from data.text.byte_tokenizer import ByteTokenizer
from data.text.tokenizer import Tokenizer
from data.text.word_tokenizer import WordTokenizer
from mmjax.training.engine.settings import EngineSettings
from sharding.balancing.reordering.row_reorderer import REORDERING_POLICIES
from sharding.plans.plan import Plan, single_device_plan
from sharding.specs.modules import module_graph


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
        source: Makes the source of a split, `train` or `test`.
        model, data, optimizer: Their own configurations.
        plan: A plan file, from here or from the configs package; `auto` to measure and plan; empty for one device.
        needs_plan: Whether fewer devices than the plan needs are an error; if not, the run falls to one device.
        steps: Steps of the whole run.
        seed: Of initial values, noise and times.
        weights: What starts from published weights and not from the seed: (part, folder) of a part that trains by
            name, such as `backbone`, or of `model` for all that the folder has (docs/weights.md). A resumed run takes
            its checkpoint.
        trainable: Parts that train, by name, or `all`, or `projectors`.
        transport: How hops travel: `auto`, `device_put` or `ppermute`.
        reordering: How the rows of a step are ordered for the plan (`sharding.balancing.reordering.row_reorderer`): `none`,
            `instances`, `microbatches`, `both` or `search`.
        reorder_in: Who does it: the `producer` of batches, before samples are decoded, or the `trainer`.
        producers: `host:port` of every producer (`python -m mmjax.serve_data`) that makes this run's batches, or
            `grpc+tls://host:port`; empty to make them here. The token that they want stands in the environment, in
            MMJAX_SERVICE_TOKEN.
        producer_patience: Seconds that a step of theirs may take, and that none may answer before the run ends.
        checkpoint_interval: Steps between checkpoints; one is written at the end in any case.
        keep: Checkpoints kept, the newest.
        validation_interval: Steps between evaluations on the test split; 0 for only at the end.
        log_interval: Steps between lines of metrics.
    """

    source: Callable[[str], Dataset]
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    plan: str = ""
    require_plan: bool = True
    steps: int = 1000
    seed: int = 0
    pretrained_weights: tuple[tuple[str, str], ...] = ()
    trainable: tuple[str, ...] = ("all",)
    transport: str = "auto"
    reordering: str = "none"
    reorder_in: str = "producer"
    producers: tuple[str, ...] = ()
    producer_timeout: float = 120.0
    checkpoint_interval: int = 1000
    max_checkpoints_to_keep: int = 2
    evaluation_interval: int = 0
    log_interval: int = 10

    def __post_init__(self) -> None:
        for name, least in (
            ("steps", 1),
            ("checkpoint_interval", 1),
            ("max_checkpoints_to_keep", 1),
            ("log_interval", 1),
        ):
            if getattr(self, name) < least:
                raise UserError(f"TrainConfig.{name} is {getattr(self, name)}; it must be at least {least}")
        for name, choices in (("reordering", tuple(REORDERING_POLICIES)), ("reorder_in", ("producer", "trainer"))):
            if getattr(self, name) not in choices:
                raise UserError(f"TrainConfig.{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        if self.evaluation_interval < 0 or self.seed < 0:
            raise UserError("TrainConfig.evaluation_interval and seed must not be negative")

    @property
    def engine_settings(self) -> EngineSettings:
        """What the engine needs of it beside the model and the plan."""
        return EngineSettings(self.optimizer, self.steps, self.seed, self.trainable, self.transport)


def tokenizer_mismatches_backbone(config: TrainConfig, tokenizer: Tokenizer) -> bool:
    """Whether a backbone that starts from published weights is given tokens that cannot be its own."""
    published = {"model", config.model.backbone.name} & {part for part, _ in config.pretrained_weights}
    return bool(published) and isinstance(tokenizer, WordTokenizer | ByteTokenizer)


def find_plan_file(name: str) -> pathlib.Path:
    """A plan file: the path as it stands, else in the configs package."""
    for path in (pathlib.Path(name), pathlib.Path(configs.__file__).parent / name):
        if path.is_file():
            return path
    raise UserError(f"there is no plan file {name}, neither here ({pathlib.Path.cwd()}) nor in the configs package")


def load_configured_plan(config: TrainConfig, devices: int) -> tuple[Plan, str]:
    """The plan to run, and a remark for people where it is not the configured one.

    Raises:
        UserError: No such file.
        PlanError: A bad file; fewer devices than it needs, and the configuration insists on it.
    """
    alone = single_device_plan(module_graph(config.model))
    if not config.plan:
        return alone, ""
    path = find_plan_file(config.plan)
    plan = Plan.load(path)
    needed = 1 + max(device for unit in plan.units for device in unit.devices)
    if needed <= devices or config.require_plan:
        return plan, ""
    return alone, f"{path.name} needs {needed} devices and there are {devices}: everything runs on one device instead"
