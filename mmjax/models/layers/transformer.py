"""The transformer block of encoders and backbones: attention and a feed-forward layer, with norms around them.

`block_stack` makes a piece of equal blocks, which the stage functions of the engine scan over.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

from configs.modules.transformer import TransformerConfig
from mmjax.models.layers.attention import build_attention
from mmjax.models.layers.feed_forward import build_mlp
from mmjax.models.layers.linear import NO_AXES
from mmjax.models.layers.matmul_formats import build_block
from mmjax.models.layers.normalization import LayerScale, build_norm
from mmjax.models.layers.positions import Rotation
from mmjax.models.structure.module import ModuleInputs, Piece, PieceModule
from pallas_kernels.packed_attention.api import Mask
from sharding.axes import Axes


class SharedInputs(NamedTuple):
    """Inputs that all blocks of a stage read in addition to their activations; computed once for each stage.

    Attributes:
        mask: Attention mask: which positions attend to which.
        rotary: Rotation of queries and keys; None where positions are embedded otherwise.
    """

    mask: Mask
    rotary: Rotation | None


class TransformerBlock(PieceModule):
    """A transformer block; `TransformerConfig` lists its options and the models that have them.

    With norms before, x = x + scale(attention(norm(x))), then x = x + scale(mlp(norm(x))); with norms after,
    x = x + scale(norm(attention(x))), and so on. In a parallel block (ViT-22B) the feed-forward layer reads the same
    normed input as attention.
    """

    def __init__(self, config: TransformerConfig) -> None:
        """Creates the layers of one block."""
        self.norm_places = config.norms
        self.attention_norm = build_norm(config, config.width)
        self.attention = self.build_attention(config)
        self.mlp_norm = None if config.parallel_block else build_norm(config, config.width)
        self.mlp = build_mlp(config)
        both = config.norms == "both"
        self.attention_output_norm = build_norm(config, config.width) if both else None
        self.mlp_output_norm = build_norm(config, config.width) if both else None
        scales = [LayerScale(config.width, config.layer_scale) if config.layer_scale else None for _ in range(2)]
        self.attention_scale, self.mlp_scale = scales

    @staticmethod
    def build_attention(config: Any) -> Any:
        """Builds the attention that the configuration describes; blocks with more kinds of attention override it."""
        return build_attention(config)

    @staticmethod
    def shared_inputs(config: Any, batch: ModuleInputs, axes: Axes = NO_AXES) -> Any:
        """Computes the shared inputs of all blocks of a stage from whole rows of the batch; blocks override it."""
        raise NotImplementedError

    @staticmethod
    def inputs_of_layer(config: Any, shared: Any, layer: int | jax.Array) -> Any:
        """Returns the shared inputs of one layer, for kinds of blocks whose layers differ; all inputs by default."""
        del config, layer
        return shared

    @jax.named_scope("block")
    def __call__(self, x: Float[Array, "r q d"], shared: SharedInputs, axes: Axes) -> Float[Array, "r q d"]:
        """Applies the block; q are this rank's positions of all s."""
        normed = self.attention_input(x)
        attended = self.attention(normed, axes, mask=shared.mask, rotary=shared.rotary)
        return self.add_attention_and_mlp(x, normed, attended, axes)

    def add_attention_and_mlp(
        self, x: Float[Array, "r q d"], normed: Float[Array, "r q d"], attended: Float[Array, "r q d"], axes: Axes
    ) -> Float[Array, "r q d"]:
        """Returns the block's output, given the output of attention.

        Args:
            x: The block's input.
            normed: Input of attention (`attention_input`).
            attended: Output of attention.
            axes: Mesh axes.
        """
        x, normed = self.add_attention(x, normed, attended)
        return self.add_mlp(x, self.mlp(normed, axes))

    def attention_input(self, x: Float[Array, "r q d"]) -> Float[Array, "r q d"]:
        """Returns the input of attention: the block's input, normed unless norms come after only."""
        return x if self.norm_places == "after" else self.attention_norm(x)

    def add_attention(
        self, x: Float[Array, "r q d"], normed: Float[Array, "r q d"], attended: Float[Array, "r q d"]
    ) -> tuple[Float[Array, "r q d"], Float[Array, "r q d"]]:
        """Adds attention's output to the residual stream, and returns it with the feed-forward layer's input."""
        after = self.attention_norm if self.norm_places == "after" else self.attention_output_norm
        x = x + apply_layer_scale(self.attention_scale, attended if after is None else after(attended))
        if self.mlp_norm is None:
            return x, normed
        return x, x if self.norm_places == "after" else self.mlp_norm(x)

    def add_mlp(self, x: Float[Array, "r q d"], y: Float[Array, "r q d"]) -> Float[Array, "r q d"]:
        """Adds the feed-forward layer's output y to the residual stream."""
        after = self.mlp_norm if self.norm_places == "after" else self.mlp_output_norm
        return x + apply_layer_scale(self.mlp_scale, y if after is None else after(y))


def block_stack(
    config: TransformerConfig,
    block: type[TransformerBlock],
    *,
    name: str = "blocks",
    layers: int | None = None,
    layer_inputs: Callable[[Any, Any], Any] | None = None,
) -> Piece:
    """Makes the piece of a module that is the stack of its blocks.

    Args:
        config: The module.
        block: Kind of the blocks.
        name: Name of the stack.
        layers: Number of its blocks; None for all of the module.
        layer_inputs: See `Piece`.
    """
    return Piece(
        name=name,
        part=config.name,
        build=lambda: build_block(block, config),
        layers=config.depth if layers is None else layers,
        layer_inputs=layer_inputs,
        shared_inputs=lambda batch, axes=NO_AXES: block.shared_inputs(config, batch, axes),
        sequence_parallel=True,
    )


def apply_layer_scale(scale: LayerScale | None, x: jax.Array) -> jax.Array:
    """Scales x where the block has a layer scale."""
    return x if scale is None else scale(x)
