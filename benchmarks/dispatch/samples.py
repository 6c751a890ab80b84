"""The samples of a step as replicas draw them, with the load of each on every phase."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Int

from benchmarks.dispatch.settings import NATIVE_SIDE
from configs.architectures import EncoderConfig, ModelConfig
from configs.workloads import Lognormal, SyntheticData
from mmjax import cli
from sharding.costs.batch_costs import LoadsByModule
from sharding.specs.layers.layer import LoadColumn
from sharding.specs.row_load_statistics import draw_sample_loads

DATA = "data/speech_mix.gin"


@dataclasses.dataclass(frozen=True, eq=False)
class StepSamples:
    """Samples of a step, ordered by the replica that drew them.

    Attributes:
        model: The model that reads them.
        replicas: Number of replicas, each of which drew equally many.
        loads: By module, the loads of every sample, [n, 3]. A sample has at most one item for each encoder.
    """

    model: ModelConfig
    replicas: int
    loads: LoadsByModule

    @property
    def mini_batch(self) -> int:
        """Number of samples of a replica."""
        return len(self.loads[self.model.backbone.name]) // self.replicas

    @property
    def drawn_by(self) -> Int[np.ndarray, " n"]:
        """The replica that drew each sample."""
        return np.repeat(np.arange(self.replicas), self.mini_batch)

    @functools.cached_property
    def _tokens(self) -> dict[str, Int[np.ndarray, " n"]]:
        return {name: loads[:, LoadColumn.TOKENS].astype(np.int64) for name, loads in self.loads.items()}

    @functools.cached_property
    def _backbone_tokens(self) -> dict[str, Int[np.ndarray, " n"]]:
        tokens = {}
        for encoder in self.model.encoders:
            items = self.loads[encoder.name][:, LoadColumn.ITEMS].astype(np.int64)
            prefix_slots = getattr(encoder, "prefix_slots", 0)
            tokens[encoder.name] = self._tokens[encoder.name] // encoder.positions_per_token - items * prefix_slots
        return tokens

    @functools.cached_property
    def _items(self) -> dict[str, Int[np.ndarray, " k"]]:
        return {name: np.flatnonzero(loads[:, LoadColumn.ITEMS]) for name, loads in self.loads.items()}

    def items(self, module: str) -> Int[np.ndarray, " k"]:
        """The samples that have an item for a module."""
        return self._items[module]

    def tokens(self, module: str) -> Int[np.ndarray, " n"]:
        """Positions of each sample in a module's rows; 0 where it has nothing for it."""
        return self._tokens[module]

    def backbone_tokens(self, encoder: EncoderConfig) -> Int[np.ndarray, " n"]:
        """Tokens that each sample's item becomes."""
        return self._backbone_tokens[encoder.name]

    def first(self, mini_batch: int, replicas: int = 0) -> "StepSamples":
        """The first samples of each replica, or of the first replicas."""
        replicas, columns = replicas or self.replicas, len(LoadColumn)
        kept = {
            module: loads.reshape(self.replicas, -1, columns)[:replicas, :mini_batch].reshape(-1, columns)
            for module, loads in self.loads.items()
        }
        return StepSamples(self.model, replicas, kept)


def described(name: str, image_bound: int) -> tuple[ModelConfig, SyntheticData]:
    """A model, and the description of its samples with images of at most so many pixels a side."""
    cli.parse_gin((f"models/{name}.gin", DATA))
    model, data = cli.configured(ModelConfig), cli.configured(SyntheticData)
    kinds = tuple(
        (dataclasses.replace(kind, image_side=_bounded(kind.image_side, image_bound)), share)
        for kind, share in data.kinds
    )
    return model, dataclasses.replace(data, kinds=kinds)


def _bounded(side: Lognormal, bound: int) -> Lognormal:
    """Sides of images shrunk to a bound; the described ones are of the bound that they have."""
    if bound <= side.maximum:
        return side
    return dataclasses.replace(side, median=NATIVE_SIDE, maximum=float(bound))


def draw_step(model: ModelConfig, data: SyntheticData, replicas: int, mini_batch: int) -> StepSamples:
    """Draws the samples of a step at random."""
    return StepSamples(model, replicas, draw_sample_loads(data, model, replicas * mini_batch).loads)
