"""Feed-forward layers of blocks and projectors, whose hidden width is split over the tensor axes."""

import jax
from flax import nnx

from configs.modules.transformer import TransformerConfig
from mmjax.models.layers.activations import ACTIVATIONS, Activations, recomputed
from mmjax.models.layers.linear import Linear, column_parallel_projections
from mmjax.models.layers.normalization import Norm, build_norm
from sharding.axes import Axes


class MLP(nnx.Module):
    """A feed-forward layer of two matmuls, down(activation(up(x)))."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        *,
        activation: str = "gelu_tanh",
        bias: bool = True,
        inner_norm: Norm | None = None,
    ) -> None:
        """Creates up `[inputs, hidden]` and down `[hidden, outputs]`; `inner_norm` is applied before down."""
        self.activation = ACTIVATIONS[activation]
        self.up = Linear(inputs, hidden, split="columns", bias=bias)
        self.inner_norm = inner_norm
        self.down = Linear(hidden, outputs, split="rows", bias=bias)

    @jax.named_scope("mlp")
    def __call__(self, x: Activations, axes: Axes) -> Activations:
        """Maps `[..., inputs]` to `[..., outputs]`."""
        hidden = recomputed(self.activation)(self.up(x, axes))  # [..., f], split over the tensor ranks
        return self.down(hidden if self.inner_norm is None else self.inner_norm(hidden, axes), axes)


class GatedMLP(nnx.Module):
    """A gated layer, down(activation(gate(x)) * up(x)) (arXiv 2002.05202): SwiGLU by default, GEGLU with `gelu`."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: str = "silu",
        bias: bool = False,
        inner_norm: Norm | None = None,
    ) -> None:
        """Creates gate and up `[width, hidden]` and down `[hidden, width]`; `inner_norm` is applied before down."""
        self.activation = ACTIVATIONS[activation]
        self.gate = Linear(width, hidden, split="columns", bias=bias)
        self.up = Linear(width, hidden, split="columns", bias=bias)
        self.inner_norm = inner_norm
        self.down = Linear(hidden, width, split="rows", bias=bias)

    @jax.named_scope("mlp")
    def __call__(self, x: Activations, axes: Axes) -> Activations:
        """Maps `[..., width]` to `[..., width]`."""
        gate, up = column_parallel_projections((self.gate, self.up), x, axes)  # [..., f] each, split over ranks
        hidden = recomputed(lambda gate, up: self.activation(gate) * up)(gate, up)
        return self.down(hidden if self.inner_norm is None else self.inner_norm(hidden, axes), axes)


def build_mlp(config: TransformerConfig) -> MLP | GatedMLP:
    """Builds the feed-forward layer that the configuration names."""
    inner_norm = build_norm(config, config.ffn, split="tensor") if "mlp" in config.inner_norms else None
    bias = "mlp" in config.biases
    if config.gated:
        return GatedMLP(config.width, config.ffn, activation=config.activation, bias=bias, inner_norm=inner_norm)
    return MLP(config.width, config.ffn, config.width, activation=config.activation, bias=bias, inner_norm=inner_norm)
