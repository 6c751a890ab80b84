"""Arguments and results of loss functions, for each target token of the backbone or each image of a generator.

A loss is a sum over tokens or images of a value times a weight that the host knows before the step: the weight is
divided by the total weight of the whole global batch there (`data/packing/loss_normalization.py`). A loss function
computes the values alone, each from its own token or image, so the sum is the same on every plan. It is a field of the
module's configuration (`BackboneConfig.loss`, `GeneratorConfig.loss`); docs/how_to/extending.md describes how to write
one.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from configs.common.errors import UserError
from mmjax.models.layers.chunked_logits import ChunkedLogits
from mmjax.models.layers.vocabulary_chunks import VocabularyChunk
from mmjax.models.structure.module import BALANCING_LOSS
from pallas_kernels.varying import varying_axes
from sharding.axes import Axes


class LossTerms(NamedTuple):
    """The values that a loss function returns if it has auxiliary losses.

    Attributes:
        values: The value of each token `[r, s]` or image `[b]`, before its weight.
        auxiliary: Further values by name, of the same shape. Their weighted sum is added to the total loss, and
            reported as `loss/<module>/<name>`.
    """

    values: jax.Array
    auxiliary: Mapping[str, jax.Array] = {}


class LikelihoodChunk(NamedTuple):
    """Logits of some tokens of the vocabulary, with the log-probabilities that they stand for.

    Attributes:
        logits: float32. Some values do not count: of padding, and of tokens that another chunk has too.
        log_probabilities: Log-probabilities of the tokens over the whole vocabulary.
        token_ids: The tokens, as numbers in the whole vocabulary; numbers from its size on are padding.
    """

    logits: Float[Array, "r s c"]
    log_probabilities: Float[Array, "r s c"]
    token_ids: Int[Array, "1 1 c"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TokenPredictions:
    """The backbone's predictions of the target tokens.

    All fields `[r, s]` are over the whole vocabulary, on every rank; the logits themselves are computed in chunks of
    the vocabulary and nowhere kept. Positions without a target have weight 0.

    Attributes:
        vocabulary: Size of the whole vocabulary.
        targets: Next tokens, as numbers in the whole vocabulary.
        target_logits: Logit of each target.
        mean_logits: Mean of the logits.
        log_normalizer: log of the sum of exp(logit) over the vocabulary.
        log_likelihood: Log-probability of each target: target_logits - log_normalizer, rounded once less.
        is_most_likely: Whether no token is more likely than the target.
        chunks: Computes the logits of this rank's tokens.
        axes: Mesh axes.
    """

    vocabulary: int
    targets: Int[Array, "r s"]
    target_logits: Float[Array, "r s"]
    mean_logits: Float[Array, "r s"]
    log_normalizer: Float[Array, "r s"]
    log_likelihood: Float[Array, "r s"]
    is_most_likely: Bool[Array, "r s"]
    chunks: ChunkedLogits
    axes: Axes

    def sum_over_vocabulary(self, function: Callable[[LikelihoodChunk], jax.Array]) -> Float[Array, "r s"]:
        """Sums a function of the logits over the whole vocabulary.

        All logits are computed once more for each such sum, and in its backward.

        Args:
            function: From a `LikelihoodChunk` to one value for each of its logits, `[r, s, c]`. It is called with every
                chunk of the vocabulary, and may use other values of these predictions. Its values of padding are left
                out.

        Raises:
            UserError: The function returns another shape.
        """

        def values(chunk: VocabularyChunk) -> jax.Array:
            # Any function and its gradient are finite at an ordinary logit, whose value does not count.
            ordinary = lax.stop_gradient(self.log_normalizer)[..., None] - 1.0
            logits = jnp.where(chunk.is_counted, chunk.logits, ordinary)
            log_probabilities = logits - self.log_normalizer[..., None]
            returned = function(LikelihoodChunk(logits, log_probabilities, chunk.token_ids))
            if jnp.shape(returned) != chunk.logits.shape:
                raise UserError(
                    f"the function that sum_over_vocabulary sums returns shape {jnp.shape(returned)}; give one value "
                    f"for each logit of the chunk, {chunk.logits.shape}"
                )
            return returned

        total = self.chunks.sum(values)
        return lax.psum(total, self.axes.tensor) if self.axes.tensor else total


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DenoisingPredictions:
    """A generator's predictions for noisy images x_t = a_t x + s_t noise, float32; with an autoencoder, of latents.

    Attributes:
        predicted: The network's prediction.
        target: Its target: the noise (`epsilon`), the velocity a_t noise - s_t x, or noise - x (`flow`).
        prediction: Which of them, `epsilon`, `velocity` or `flow`.
        images: The images x.
        noise: Their noise, standard normal.
        signal_scale: a_t of each image.
        noise_scale: s_t of each image.
        mean_squared_errors: Mean squared error of each image's prediction.
    """

    predicted: Float[Array, "b y x c"]
    target: Float[Array, "b y x c"]
    prediction: str
    images: Float[Array, "b y x c"]
    noise: Float[Array, "b y x c"]
    signal_scale: Float[Array, " b"]
    noise_scale: Float[Array, " b"]
    mean_squared_errors: Float[Array, " b"]

    @property
    def signal_to_noise(self) -> Float[Array, " b"]:
        """The signal-to-noise ratio a_t² / s_t² of each image."""
        return jnp.square(self.signal_scale) / jnp.square(self.noise_scale)


LossFunction = Callable[[Any], jax.Array | LossTerms]
"""From TokenPredictions or DenoisingPredictions to the value of each token or image, perhaps with auxiliary losses."""


def cross_entropy(predictions: TokenPredictions) -> Float[Array, "r s"]:
    """Negative log-likelihood of each target: the language loss unless `BackboneConfig.loss` is given."""
    return -predictions.log_likelihood


def mean_squared_error(predictions: DenoisingPredictions) -> Float[Array, " b"]:
    """Mean squared error of each image: the diffusion loss unless `GeneratorConfig.loss` is given."""
    return predictions.mean_squared_errors


def token_predictions(chunks: ChunkedLogits, targets: Int[Array, "r s"], axes: Axes) -> TokenPredictions:
    """Compares logits, of which each tensor rank has a slice of the vocabulary, with targets.

    Args:
        chunks: The logits of this rank's slice.
        targets: Next tokens, as numbers in the whole vocabulary.
        axes: Mesh axes.
    """
    largest, total, target_logits, logit_sum = chunks.sums(targets)
    largest = local_largest = lax.stop_gradient(largest)
    if axes.tensor:
        largest = lax.pmax(local_largest, axes.tensor)
        total = total * jnp.exp(local_largest - largest)
        total, target_logits, logit_sum = lax.psum((total, target_logits, logit_sum), axes.tensor)
    log_total = jnp.log(total)
    return TokenPredictions(
        vocabulary=chunks.options.vocabulary,
        targets=targets,
        target_logits=target_logits,
        mean_logits=logit_sum / chunks.options.vocabulary,
        log_normalizer=largest + log_total,
        log_likelihood=target_logits - largest - log_total,
        is_most_likely=target_logits >= largest,
        chunks=chunks,
        axes=axes,
    )


def weighted_loss(
    loss: LossFunction, predictions: TokenPredictions | DenoisingPredictions, weights: jax.Array, axes: Axes
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Computes the loss, and auxiliary losses by name: sums of the loss function's values times their weights.

    Args:
        loss: The loss function.
        predictions: Its argument.
        weights: Weight of each token `[r, s]` or image `[b]`.
        axes: Mesh axes.

    Raises:
        UserError: The loss function does not return one floating-point value for each token or image, or a value that
            differs between tensor ranks; the message names the function.
    """
    terms = loss(predictions)
    if not isinstance(terms, LossTerms):
        terms = LossTerms(terms)
    if BALANCING_LOSS in terms.auxiliary:
        raise UserError(f"the loss {loss!r} names an auxiliary loss {BALANCING_LOSS!r}, the name of the experts' loss")
    total = _weighted_sum(f"the loss {loss!r} returns", terms.values, weights, axes)
    return total, {
        name: _weighted_sum(f"the loss {loss!r} returns as {name!r}", values, weights, axes)
        for name, values in terms.auxiliary.items()
    }


def _weighted_sum(message_start: str, values: Any, weights: jax.Array, axes: Axes) -> Float[Array, ""]:
    if not isinstance(values, jax.Array) or not jnp.issubdtype(values.dtype, jnp.floating):
        kind = values.dtype if isinstance(values, jax.Array) else type(values).__name__
        raise UserError(
            f"{message_start} {kind}; return an array of floating-point values, or LossTerms of such arrays"
        )
    if values.shape != weights.shape:
        raise UserError(f"{message_start} shape {values.shape}; give each token or image one value: {weights.shape}")
    if varying_axes(values).intersection(axes.tensor):
        raise UserError(
            f"{message_start} values that differ between tensor ranks; sum over the vocabulary by "
            "predictions.sum_over_vocabulary"
        )
    return jnp.sum(weights * values)
