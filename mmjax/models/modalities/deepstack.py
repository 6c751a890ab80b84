"""DeepStack (arXiv 2406.04334): features of several encoder layers, added to outputs of the backbone's first blocks.

An encoder's activations are [r, p, (1 + K) d]: the hidden states, and room for the outputs of K layers of it ("taps").
There is room from the first layer on, because the layers of a stack pass on activations of one shape, and a pipeline
may cut the stack anywhere; saved and sent activations grow by K times the hidden states. The projector has a projector
for each tap.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mmjax.models.layers.linear import NO_AXES
from mmjax.models.layers.transformer import TransformerBlock
from mmjax.models.structure.module import LayerOutput, ModuleInputs, ModuleOutput, PieceModule
from sharding.axes import Axes


class TapInputs(NamedTuple):
    """Inputs of a block whose output may be a tap, in addition to its activations.

    Attributes:
        block: Shared inputs of the block itself.
        layer: Number of its layer.
    """

    block: Any
    layer: int | jax.Array


def add_room_for_taps(x: Float[Array, "r p d"], taps: int) -> Float[Array, "r p c"]:
    """Appends zeros for the taps to the channels of activations."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, taps * x.shape[-1]))) if taps else x


@functools.cache
def tapped_block(block: type[TransformerBlock]) -> type[TransformerBlock]:
    """Returns a kind of block that keeps its output as a tap in the layers of `EncoderConfig.tapped_layers`."""

    class TappedBlock(block):
        """The block, on the hidden states within [r, p, (1 + K) d]."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.width, self.tapped_layers = config.width, config.tapped_layers

        @staticmethod
        def shared_inputs(config: Any, batch: ModuleInputs, axes: Axes = NO_AXES) -> TapInputs:
            """Computes the shared inputs of the block; `inputs_of_layer` sets the layer."""
            return TapInputs(block.shared_inputs(config, batch, axes), -1)

        @staticmethod
        def inputs_of_layer(config: Any, shared: TapInputs, layer: int | jax.Array) -> TapInputs:
            """Returns the shared inputs of a layer, and the layer's number."""
            return TapInputs(block.inputs_of_layer(config, shared.block, layer), layer)

        def __call__(self, x: Float[Array, "r q c"], shared: TapInputs, axes: Axes) -> Float[Array, "r q c"]:
            hidden = super().__call__(x[..., : self.width], shared.block, axes)
            taps = [
                jnp.where(shared.layer == layer, hidden, x[..., number * self.width : (number + 1) * self.width])
                for number, layer in enumerate(self.tapped_layers, start=1)
            ]
            return jnp.concatenate([hidden, *taps], axis=-1)

    return TappedBlock


class DeepStackProjector(PieceModule):
    """A projector of the last hidden states, and one for each tap; their outputs share the channels of a token."""

    def __init__(self, last: PieceModule, taps: list[PieceModule], width: int) -> None:
        """Takes the projectors, and splits the encoder's activations by its width.

        Args:
            last: Projector of the last hidden states.
            taps: Projector of each tap.
            width: Width of the encoder.
        """
        self.last, self.taps, self.width = last, nnx.List(taps), width
        self.batch_keys = tuple(dict.fromkeys(key for piece in (last, *taps) for key in piece.batch_keys))

    def __call__(self, x: Float[Array, "r p c"], batch: ModuleInputs, axes: Axes) -> ModuleOutput:
        """Projects `[r, p, (1 + K) d]` to one token of (1 + K) times the backbone's width for each group."""
        projectors: Any = (self.last, *self.taps)
        outputs = [
            projector(x[..., number * self.width : (number + 1) * self.width], batch, axes).activations
            for number, projector in enumerate(projectors)
        ]
        return ModuleOutput(
            {target: jnp.concatenate([output[target] for output in outputs], axis=-1) for target in outputs[0]}
        )


class EarlyActivations(NamedTuple):
    """Activations between the first blocks of the backbone, which one stage holds together with the embedding.

    Attributes:
        x: Hidden states.
        features: Summands of the outputs of the blocks that follow, in their order; zero at text tokens.
    """

    x: Float[Array, "r q d"]
    features: tuple[Float[Array, "r q d"], ...]

    def after_block(self, x: Float[Array, "r q d"]) -> "EarlyActivations | Float[Array, 'r q d']":
        """Returns the activations after the next block, whose output is x; x alone if no features are left."""
        if self.features:
            x = x + self.features[0]
        return EarlyActivations(x, self.features[1:]) if len(self.features) > 1 else x


def split_tokens(tokens: Float[Array, "r t c"], width: int) -> list[Float[Array, "r t d"]]:
    """Splits an encoder's tokens into their first `width` channels, and the features behind them."""
    return jnp.split(tokens, tokens.shape[-1] // width, axis=-1)


@functools.cache
def early_block(block: type[TransformerBlock]) -> type[TransformerBlock]:
    """Returns a kind of block to whose output features are added."""

    class EarlyBlock(block):
        """The block, applied to the hidden states of `EarlyActivations`."""

        def __call__(self, x: EarlyActivations, shared: Any, axes: Axes) -> Any:
            output = super().__call__(x.x, shared, axes)
            if isinstance(output, LayerOutput):
                return output._replace(x=x.after_block(output.x))
            return x.after_block(output)

    return EarlyBlock
