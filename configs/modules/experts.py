"""Mixtures of experts: options of the router that chooses among feed-forward layers, and of these layers.

`BackboneConfig.experts` holds them; `mmjax.models.layers.router` and `mmjax.models.layers.experts` compute them.
"""

import dataclasses
from typing import Literal, Self

from configs.common.checks import require_positive, require_types
from configs.common.short_repr import short_repr

RouterScores = Literal["softmax", "sigmoid"]
WeightedSide = Literal["outputs", "inputs"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """Options of a router: the scores of experts, the choice of a token's experts, and their weights.

    Attributes:
        scores: Scores of the experts: the `softmax` of the router's logits over all of them, or the `sigmoid` of each
            (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
        bias: Whether the logits have a bias (gpt-oss).
        selection_bias: Whether experts are chosen by their scores plus a bias each, which does not enter their weights
            (balancing without auxiliary loss, arXiv 2408.15664). A step lowers the biases of experts with more than
            their share of the global batch, and raises the others' (`OptimizerConfig.selection_bias_rate`).
        groups: Number of groups of consecutive experts; 1 for no groups.
        top_groups: Number of groups that a token's experts come from: the groups whose largest scores, with their
            selection biases, have the largest sum.
        group_best: Number of a group's largest scores whose sum ranks it: 1 (DeepSeek-V2, arXiv 2405.04434) or 2 (V3).
        normalise: Whether the scores of the chosen experts are divided by their sum plus 1e-20. Of softmax scores, that
            equals the softmax over the logits of the chosen experts alone (Mixtral, gpt-oss).
        weight_factor: Factor of the weights (DeepSeek-V3's routed scaling factor).
        weighted: Operand of the weights: the `outputs` of experts, or their `inputs` (Llama 4).
    """

    scores: RouterScores = "softmax"
    bias: bool = False
    selection_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    normalise: bool = True
    weight_factor: float = 1.0
    weighted: WeightedSide = "outputs"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "groups", "top_groups", "group_best")
        if self.top_groups > self.groups:
            raise ValueError(f"RouterConfig.top_groups = {self.top_groups} is more than groups = {self.groups}")
        if self.weight_factor <= 0:
            raise ValueError(f"RouterConfig.weight_factor is {self.weight_factor}; it must be more than 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Gated feed-forward layers chosen by a router (Mixtral, arXiv 2401.04088; Qwen2-MoE, arXiv 2407.10671).

    An expert is down(activation(min(gate x, limit)) * (clip(up x, -limit, limit) + up_offset)).

    Attributes:
        count: Number of experts.
        top_k: Number of experts that a token passes through.
        ffn: Feed-forward width f of an expert.
        router: Chooses and weights the experts of a token.
        biases: Whether gate, up and down of the experts have biases (gpt-oss).
        limit: Limit of gate x from above and of up x on both sides (gpt-oss); 0 for none.
        up_offset: Added to up x (gpt-oss has 1).
        shared_ffn: Width of an expert that every token passes through, without biases, limit and offset; 0 for none.
        shared_gate: Whether the shared expert's output is scaled by a sigmoid gate (Qwen2-MoE; not DeepSeek).
        dense_layers: Number of the first blocks that have a feed-forward layer of width `BackboneConfig.ffn` and no
            experts (DeepSeek, arXiv 2401.06066).
        interval: One of so many consecutive blocks, the last one, has experts; the others are like the first
            `dense_layers` (Llama 4 Maverick has 2). Where blocks differ by turns, each is a stack of its own, which is
            compiled apart.
        balance_weight: Weight of the load-balancing loss, a mean over layers, in the model's loss.
    """

    count: int = 8
    top_k: int = 2
    ffn: int = 256
    router: RouterConfig = RouterConfig()
    biases: bool = False
    limit: float = 0.0
    up_offset: float = 0.0
    shared_ffn: int = 0
    shared_gate: bool = True
    dense_layers: int = 0
    interval: int = 1
    balance_weight: float = 0.01

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "count", "top_k", "ffn", "interval")
        if self.top_k > self.count:
            raise ValueError(f"ExpertsConfig.top_k = {self.top_k} is more than count = {self.count}")
        for field in ("limit", "shared_ffn", "dense_layers", "balance_weight"):
            if getattr(self, field) < 0:
                raise ValueError(f"ExpertsConfig.{field} is {getattr(self, field)}; it may not be negative")
        if self.router.groups > 1:
            self._check_groups()

    def with_depth(self, depth: int) -> Self:
        """The experts of a backbone of another depth; `dense_layers` and `interval` leave at least the last block."""
        dense_layers = min(self.dense_layers, depth - 1)
        interval = min(self.interval, depth)
        return dataclasses.replace(
            self, dense_layers=dense_layers, interval=interval if depth // interval * interval > dense_layers else 1
        )

    def _check_groups(self) -> None:
        """Raises ValueError for groups of experts that are too small."""
        groups, top_groups = self.router.groups, self.router.top_groups
        size = self.count // groups
        if self.count % groups or size < self.router.group_best:
            raise ValueError(
                f"ExpertsConfig.router has {groups} groups, which must divide the {self.count} experts (count) into "
                f"groups of at least {self.router.group_best} (router.group_best)"
            )
        if self.top_k > top_groups * size:
            raise ValueError(
                f"ExpertsConfig.top_k = {self.top_k} is more than the {top_groups * size} experts of the "
                f"{top_groups} groups that a token's experts come from (router.top_groups)"
            )
