"""The replica that computes each item of a step in every phase, under each way of balancing, and the data sent.

Every phase is balanced by the algorithms of `sharding/balancing/postbalancing`, then placed node-wise; encoder outputs
go from where the encoder ran to where the backbone runs, by the composed rearrangement (section 6).
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from benchmarks.dispatch.samples import StepSamples
from configs.architectures import AudioConfig, EncoderConfig, VisionConfig
from sharding.balancing.postbalancing.nodewise import SentItems, place_batches
from sharding.balancing.postbalancing.padded import balance_padded
from sharding.balancing.postbalancing.rearrangement import Rearrangement
from sharding.balancing.postbalancing.unpadded import balance_unpadded
from sharding.specs.layers.layer import LoadColumn, Loads

Rule = Literal["drawn", "backbone", "unpadded", "padded"]
"""Where a phase computes an item: where its sample was drawn, where the backbone has the sample, or balanced."""

ELEMENT_BYTES = 2
TEXT_BYTES = 8
"""Bytes of a text token: its id and its label, 4 each."""
_FRAMES_PER_POSITION = 2  # of audio


@dataclasses.dataclass(frozen=True, kw_only=True)
class Balancing:
    """A way of balancing.

    Attributes:
        rules: By module.
        padded: Modules that compute every item as long as the longest of its replica.
        exchanges: Whether items move within the step; where samples are dealt out before it, they do not.
        node_wise: Whether batches are placed where little is sent between nodes.
    """

    rules: Mapping[str, Rule]
    padded: frozenset[str] = frozenset({"audio"})
    exchanges: bool = True
    node_wise: bool = True


def _rules(vision: Rule, audio: Rule, backbone: Rule) -> Mapping[str, Rule]:
    return {"vision": vision, "audio": audio, "backbone": backbone}


UNBALANCED = Balancing(rules=_rules("drawn", "drawn", "drawn"), exchanges=False)
BACKBONE_ONLY = Balancing(rules=_rules("backbone", "backbone", "unpadded"), exchanges=False)
ORCHMLLM = Balancing(rules=_rules("unpadded", "padded", "unpadded"))
UNPADDED_RULE = Balancing(rules=_rules("unpadded", "unpadded", "unpadded"))
PADDED_RULE = Balancing(rules=_rules("padded", "padded", "padded"))
ALL_PADDED = Balancing(rules=_rules("padded", "padded", "padded"), padded=frozenset({"vision", "audio", "backbone"}))
NONE_PADDED = Balancing(rules=_rules("unpadded", "unpadded", "unpadded"), padded=frozenset())
NOT_NODE_WISE = dataclasses.replace(ORCHMLLM, node_wise=False)


class Exchange(NamedTuple):
    """An all-to-all of a step.

    Attributes:
        name: What is sent.
        sizes: Bytes of the items.
        source: The replica that has each item.
        target: The replica to which it is sent.
        passes: 2 where gradients return the same way.
    """

    name: str
    sizes: Int[np.ndarray, " n"]
    source: Int[np.ndarray, " n"]
    target: Int[np.ndarray, " n"]
    passes: int = 1


class Arrangement(NamedTuple):
    """Where a step's samples are computed.

    Attributes:
        computed_by: By module, the replica that computes each sample's item.
        exchanges: The exchanges within the step.
    """

    computed_by: Mapping[str, Int[np.ndarray, " n"]]
    exchanges: tuple[Exchange, ...]


def arrange(samples: StepSamples, balancing: Balancing, per_node: int) -> Arrangement:
    """Balances every phase.

    Args:
        samples: The samples.
        balancing: The way of balancing.
        per_node: Replicas of a node.
    """
    drawn_by, backbone, encoders = samples.drawn_by, samples.model.backbone.name, samples.model.encoders
    text = samples.tokens(backbone) - sum(samples.backbone_tokens(encoder) for encoder in encoders)
    batch = _batches(samples, backbone, np.arange(len(drawn_by)), balancing.rules[backbone], drawn_by)
    computed_by: dict[str, Int[np.ndarray, " n"]] = {}
    exchanges: list[Exchange] = []
    outputs: list[tuple[str, Int[np.ndarray, " k"], Int[np.ndarray, " k"]]] = []
    for encoder in encoders:
        name, rule = encoder.name, balancing.rules[encoder.name]
        items = samples.items(name)
        sizes = samples.tokens(name)[items] * _input_bytes(encoder)
        source = drawn_by[items]
        target = batch[items] if rule == "backbone" else _batches(samples, name, items, rule, source)
        if balancing.exchanges:
            if balancing.node_wise:
                target = place_batches(SentItems(sizes, source, target), samples.replicas, per_node)[target]
            exchanges.append(Exchange(f"inputs of {name}", sizes, source, target))
            tokens = samples.backbone_tokens(encoder)[items]
            outputs.append((name, items, tokens * samples.model.backbone.width * ELEMENT_BYTES))
        computed_by[name] = drawn_by.copy()
        computed_by[name][items] = target
    if balancing.exchanges:
        if balancing.node_wise:
            sent = [(sizes, computed_by[name][items], batch[items]) for name, items, sizes in outputs]
            sizes, source, target = map(np.concatenate, zip(*sent, strict=True))
            batch = place_batches(SentItems(sizes, source, target), samples.replicas, per_node)[batch]
        exchanges.append(Exchange("text", text * TEXT_BYTES, drawn_by, batch))
        exchanges += [
            _output_exchange(samples, name, computed_by[name], batch, items, sizes) for name, items, sizes in outputs
        ]
    return Arrangement({**computed_by, backbone: batch}, tuple(exchanges))


def _batches(
    samples: StepSamples, module: str, items: Int[np.ndarray, " k"], rule: Rule, source: Int[np.ndarray, " k"]
) -> Int[np.ndarray, " k"]:
    """The batch of each item, not yet placed; where it was drawn without a rule to balance by."""
    lengths = samples.tokens(module)[items]
    if rule == "unpadded":
        return balance_unpadded(lengths, samples.replicas)
    return balance_padded(lengths, samples.replicas) if rule == "padded" else source


def _output_exchange(
    samples: StepSamples,
    name: str,
    encoded_by: Int[np.ndarray, " n"],
    backbone: Int[np.ndarray, " n"],
    items: Int[np.ndarray, " k"],
    sizes: Int[np.ndarray, " k"],
) -> Exchange:
    """The outputs of an encoder, by the composition of the two rearrangements of its items."""
    before = np.bincount(samples.drawn_by[items], minlength=samples.replicas)
    encoded = Rearrangement.from_targets(encoded_by[items], before)
    moved = encoded.inverse().compose(Rearrangement.from_targets(backbone[items], before))
    in_order = np.empty_like(sizes)
    in_order[encoded.new_index] = sizes
    return Exchange(f"outputs of {name}", in_order, moved.source, moved.target, passes=2)


def _input_bytes(encoder: EncoderConfig) -> int:
    """Bytes that an encoder reads for one position."""
    if isinstance(encoder, VisionConfig):
        return encoder.patch**2 * encoder.channels * ELEMENT_BYTES
    if isinstance(encoder, AudioConfig):
        return encoder.mels * _FRAMES_PER_POSITION * ELEMENT_BYTES
    raise TypeError(f"the bytes of a position of {encoder.name} are not known")


def replica_loads(samples: StepSamples, module: str, arrangement: Arrangement, padded: bool) -> Loads:
    """Loads that every replica computes of a module, padding included, [replicas, 3]."""
    loads, computed_by = samples.loads[module], arrangement.computed_by[module]
    if not padded:
        return np.stack([_sums(column, computed_by, samples.replicas) for column in loads.T], axis=1)
    items = _sums(loads[:, LoadColumn.ITEMS], computed_by, samples.replicas)
    longest = np.zeros((samples.replicas, len(LoadColumn)))
    np.maximum.at(longest, computed_by, loads)  # 1 in the column of items, where there is one
    return longest * items[:, None]


def all_replica_loads(samples: StepSamples, arrangement: Arrangement, padded: frozenset[str]) -> dict[str, Loads]:
    """`replica_loads` of all modules."""
    return {module: replica_loads(samples, module, arrangement, module in padded) for module in samples.loads}


def _sums(values: Float[np.ndarray, " n"], replica: Int[np.ndarray, " n"], replicas: int) -> Float[np.ndarray, " d"]:
    return np.bincount(replica, weights=values, minlength=replicas)
