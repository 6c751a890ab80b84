"""A small random vision tower of transformers beside the encoder that is read from its folder."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from configs.architectures import VisionConfig
from mmjax.models.model import model_modules
from mmjax.models.structure.module import Module
from mmjax.weights import registry
from mmjax.weights.published_checkpoint import as_model, open_checkpoint
from sharding.trees import Tree
from tests.mmjax.weights.published.encoders.vision_parity import hidden_states, packed, picture, raster
from tests.mmjax.weights.published.parity import (
    assert_close,
    export_parameters,
    import_parameters,
    randomise_weights,
    same_tensors,
)

Sizes = Sequence[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Tower:
    """A model of transformers and the folder that it is saved in."""

    theirs: Any
    folder: pathlib.Path

    @property
    def config(self) -> VisionConfig:
        """The encoder that the folder describes."""
        return open_checkpoint(self.folder).config

    def import_into(self, config: VisionConfig) -> tuple[Module, Tree]:
        """An encoder and its parameters out of the folder."""
        module = model_modules(as_model(config))[0]
        return module, import_parameters(self.folder, as_model(config), "vision", (module,))


def saved_tower(theirs: Any, folder: pathlib.Path) -> Tower:
    """Saves a model of transformers with random weights."""
    randomise_weights(theirs).save_pretrained(folder)
    return Tower(theirs, folder)


def assert_features_match(
    tower: Tower, published_features: Callable[[np.ndarray], np.ndarray], sizes: Sizes, merge: int
) -> None:
    """Fails if features of packed pictures differ from the published ones by more than 1e-5 of the largest.

    Args:
        tower: The tower.
        published_features: Features [tokens before the patches and patches in raster order, width] of a picture.
        sizes: Heights and widths in pixels, multiples of patch x merge.
        merge: Side of a cell, which says in what order patches are packed.
    """
    config = dataclasses.replace(tower.config, merge=merge)
    pictures = [picture(number, *size) for number, size in enumerate(sizes)]
    module, _ = tower.import_into(config)
    _, parameters = tower.import_into(tower.config)  # the projector's shape depends on merge, and is not compared
    arrays = packed(config, *pictures)
    found = hidden_states(module, parameters["vision"], arrays)
    for number, seen in enumerate(pictures, start=1):
        ours = np.concatenate(raster(found, arrays, number))
        assert_close(ours, published_features(seen), tolerance=1e-5)


def assert_exported_bit_identical(tower: Tower, output: pathlib.Path) -> None:
    """Fails if an export after import has other tensors, or a written config.json does not read back equal."""
    _, parameters = tower.import_into(tower.config)
    export_parameters(tower.folder, as_model(tower.config), "vision", parameters, output)
    assert same_tensors(tower.folder, output)
    assert open_checkpoint(output).config == tower.config
    published = open_checkpoint(tower.folder).architecture
    values = json.loads(json.dumps(registry.write_architecture(published, tower.config)))
    assert published.read_config(values) == tower.config
    named, theirs = type(tower.theirs.config).from_dict(values), tower.theirs.config
    written = {key for key in values if key not in ("architectures", "model_type")}
    assert {key: getattr(named, key) for key in written} == {key: getattr(theirs, key) for key in written}
