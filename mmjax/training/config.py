"""What a training run is made of; bound in gin files, checked here."""

import dataclasses
import pathlib
from collections.abc import Callable

import configs
from configs.architectures import ModelConfig
from configs.errors import UserError
from data.data_config import DataConfig
from data.source import Source
from data.tokenizer import WordTokenizer
from data.tokenizers.byte_level import ByteTokenizer
from data.tokenizers.interface import Tokenizer
from mmjax.training.optimizer import OptimizerConfig
from mmjax.training.settings import Settings
from sharding.balancing.arrangement import POLICIES
from sharding.plan import Plan, one_device
from sharding.specs import module_graph


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
        reordering: How the rows of a step are ordered for the plan (`sharding.balancing.arrangement`): `none`,
            `instances`, `microbatches`, `both` or `search`.
        reorder_in: Who does it: the `producer` of batches, before samples are decoded, or the `trainer`.
        producers: `host:port` of every producer (`python -m data.service`) that makes this run's batches, or
            `grpc+tls://host:port`; empty to make them here. The token that they want stands in the environment, in
            MMJAX_SERVICE_TOKEN.
        producer_patience: Seconds that a step of theirs may take, and that none may answer before the run ends.
        checkpoint_interval: Steps between checkpoints; one is written at the end in any case.
        keep: Checkpoints kept, the newest.
        validation_interval: Steps between evaluations on the test split; 0 for only at the end.
        log_interval: Steps between lines of metrics.
    """

    source: Callable[[str], Source]
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    plan: str = ""
    needs_plan: bool = True
    steps: int = 1000
    seed: int = 0
    weights: tuple[tuple[str, str], ...] = ()
    trainable: tuple[str, ...] = ("all",)
    transport: str = "auto"
    reordering: str = "none"
    reorder_in: str = "producer"
    producers: tuple[str, ...] = ()
    producer_patience: float = 120.0
    checkpoint_interval: int = 1000
    keep: int = 2
    validation_interval: int = 0
    log_interval: int = 10

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("checkpoint_interval", 1), ("keep", 1), ("log_interval", 1)):
            if getattr(self, name) < least:
                raise UserError(f"TrainConfig.{name} is {getattr(self, name)}; it must be at least {least}")
        for name, choices in (("reordering", tuple(POLICIES)), ("reorder_in", ("producer", "trainer"))):
            if getattr(self, name) not in choices:
                raise UserError(f"TrainConfig.{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        if self.validation_interval < 0 or self.seed < 0:
            raise UserError("TrainConfig.validation_interval and seed must not be negative")

    @property
    def settings(self) -> Settings:
        """What the engine needs of it beside the model and the plan."""
        return Settings(self.optimizer, self.steps, self.seed, self.trainable, self.transport)


def foreign_tokens(config: TrainConfig, tokenizer: Tokenizer) -> bool:
    """Whether a backbone that starts from published weights is given tokens that cannot be its own."""
    published = {"model", config.model.backbone.name} & {part for part, _ in config.weights}
    return bool(published) and isinstance(tokenizer, WordTokenizer | ByteTokenizer)


def find_plan(name: str) -> pathlib.Path:
    """A plan file: the path as it stands, else in the configs package."""
    for path in (pathlib.Path(name), pathlib.Path(configs.__file__).parent / name):
        if path.is_file():
            return path
    raise UserError(f"there is no plan file {name}, neither here ({pathlib.Path.cwd()}) nor in the configs package")


def choose_plan(config: TrainConfig, devices: int) -> tuple[Plan, str]:
    """The plan to run, and a remark for people where it is not the configured one.

    Raises:
        UserError: No such file.
        PlanError: A bad file; fewer devices than it needs, and the configuration insists on it.
    """
    alone = one_device(module_graph(config.model))
    if not config.plan:
        return alone, ""
    path = find_plan(config.plan)
    plan = Plan.load(path)
    needed = 1 + max(device for unit in plan.units for device in unit.devices)
    if needed <= devices or config.needs_plan:
        return plan, ""
    return alone, f"{path.name} needs {needed} devices and there are {devices}: everything runs on one device instead"
