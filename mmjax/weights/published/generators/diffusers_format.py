"""Common code for files of diffusers: the tables of config.json, and blocks of U-Nets and autoencoders."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mmjax.weights.published.key_table import Fixed, Keys, Table
from mmjax.weights.published.rules import (
    Config,
    PublishedArchitecture,
    Rule,
    linear_rules,
    norm_rules,
    require_round_trip,
)
from mmjax.weights.published.table_architecture import table_architecture
from mmjax.weights.published.tensor_layouts import CONVOLUTION, LINEAR

NOT_IN_CONFIG = (
    "image_size", "channels", "conditions", "condition_dropout", "loss", "schedule", "autoencoder",
)  # fmt: skip
"""Fields of a generator that the config.json of its U-Net or transformer does not describe."""

CHANNELS = ("in_channels", "out_channels")


def diffusers_architecture(
    name: str,
    types: Mapping[str, type],
    keys: Table,
    rules: Callable[[Config], Iterable[Rule]],
    undescribed: tuple[str, ...] = (),
    **others: Any,
) -> PublishedArchitecture:
    """Makes a published architecture of diffusers from the table of its keys.

    Args:
        name: Name of the class that loads it.
        types: As in `table_architecture`.
        keys: The keys of its config.json, without the name of the class.
        rules: Rules of a configuration.
        undescribed: Fields besides `NOT_IN_CONFIG` that may differ in a configuration that is read back.
        **others: Other arguments of `table_architecture`.
    """
    require_same = functools.partial(require_round_trip, except_fields=(*NOT_IN_CONFIG, *undescribed))
    return table_architecture(
        name,
        (name,),
        types,
        (Keys(write=lambda _: {"_class_name": name}), *keys),
        rules=lambda config: {config.name: tuple(rules(config))},
        file_stem="diffusion_pytorch_model",
        **{"require_same": require_same, **others},
    )


def only(values: Mapping[str, Any]) -> Table:
    """Makes the entries of keys that have only one value that can be computed, and that are written."""
    return tuple(Fixed(key, value, written=True) for key, value in values.items())


def residual_block_rules(tensor: str, parameter: str, *, embedding: bool, skip: bool) -> Iterator[Rule]:
    """Rules of a ResnetBlock2D.

    Args:
        tensor: Prefix of its tensors' names.
        parameter: Path of the block here.
        embedding: Whether it has an embedding of time.
        skip: Whether it changes the width, so that its skip path has a convolution.
    """
    for number, name in ((1, "first"), (2, "second")):
        yield from norm_rules(f"{tensor}.norm{number}", f"{parameter}/{name}_norm", bias=True)
        yield from linear_rules(f"{tensor}.conv{number}", f"{parameter}/{name}", CONVOLUTION, bias=True)
    if embedding:
        yield from linear_rules(f"{tensor}.time_emb_proj", f"{parameter}/embedding", LINEAR, bias=True)
    if skip:
        yield from linear_rules(f"{tensor}.conv_shortcut", f"{parameter}/skip", CONVOLUTION, bias=True)


def attention_rules(tensor: str, parameter: str, *, bias: bool) -> Iterator[Rule]:
    """Rules of an Attention, whose output always has a bias; `bias` says whether its other projections have some."""
    for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
        yield from linear_rules(f"{tensor}.to_{letter}", f"{parameter}/{name}", LINEAR, bias)
    yield from linear_rules(f"{tensor}.to_out.0", f"{parameter}/output", LINEAR, bias=True)


def resampling_rules(levels: int, down: tuple[str, str], up: tuple[str, str]) -> Iterator[Rule]:
    """Rules of the convolutions between levels.

    Args:
        levels: Number of levels.
        down: Prefix of the names of the half whose levels become smaller, and its path here.
        up: Likewise of the half whose levels become larger.
    """
    for (tensor, parameter), kind, name in ((down, "downsamplers", "shrink"), (up, "upsamplers", "grow")):
        for level in range(levels - 1):
            convolution = f"{tensor}.{level}.{kind}.0.conv"
            yield from linear_rules(convolution, f"{parameter}/{name}/{level}", CONVOLUTION, bias=True)
