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
from mmjax.models.layers.tensor_parallel import first_vocabulary_row
from mmjax.models.structure.module import BALANCING_LOSS
from pallas_kernels.varying import rank_count, varying_axes
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


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TokenPredictions:
    """The backbone's predictions of the target tokens, whose vocabulary may be split over the tensor ranks.

    All `[r, s]` fields are over the whole vocabulary, on every rank. Positions without a target have weight 0.
    Tensor ranks have equally many logits: where they do not divide the vocabulary, the last ones have padding, whose
    `token_ids` are no tokens and which has probability 0.

    Attributes:
        logits: Logits of this rank's slice of the vocabulary, float32; the whole vocabulary on one device.
        vocabulary: Size of the whole vocabulary.
        targets: Next tokens, as numbers in the whole vocabulary.
        target_logits: Logit of each target.
        log_normalizer: log of the sum of exp(logit) over the vocabulary.
        log_likelihood: Log-probability of each target: target_logits - log_normalizer, rounded once less.
        is_most_likely: Whether no token is more likely than the target.
        axes: Mesh axes.
    """

    logits: Float[Array, "r s v"]
    vocabulary: int
    targets: Int[Array, "r s"]
    target_logits: Float[Array, "r s"]
    log_normalizer: Float[Array, "r s"]
    log_likelihood: Float[Array, "r s"]
    is_most_likely: Bool[Array, "r s"]
    axes: Axes

    @property
    def token_ids(self) -> Int[Array, " v"]:
        """The tokens that `logits` are of, as numbers in the whole vocabulary; padding has numbers behind it."""
        return _token_ids(self.logits.shape[-1], self.axes)

    @property
    def log_probabilities(self) -> Float[Array, "r s v"]:
        """Log-probabilities of the tokens that `logits` are of."""
        return self.logits - self.log_normalizer[..., None]

    @property
    def mean_logits(self) -> Float[Array, "r s"]:
        """Mean of the logits over the whole vocabulary."""
        return self.sum_over_vocabulary(self.logits) / self.vocabulary

    def sum_over_vocabulary(self, values: jax.Array) -> Float[Array, "r s"]:
        """Sums values `[r, s, v]`, in the shape of `logits`, over the whole vocabulary, padding left out.

        Raises:
            UserError: The values have another shape.
        """
        if values.shape != self.logits.shape:
            raise UserError(
                f"sum_over_vocabulary takes values of the shape of the logits, {self.logits.shape}, not {values.shape}"
            )
        total = jnp.sum(_replace_padding(values, self.vocabulary, 0.0, self.axes), axis=-1)
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


_PADDING_LOGIT = -1e9
"""Logit of padding: its exponential is 0 beside any other, and losses that compute with it stay finite."""


def _token_ids(local_rows: int, axes: Axes) -> Int[Array, " v"]:
    return first_vocabulary_row(local_rows, axes) + jnp.arange(local_rows)


def _replace_padding(values: jax.Array, vocabulary: int, by: float, axes: Axes) -> jax.Array:
    """Replaces the values `[r, s, v]` of this rank's slice of the vocabulary at padding."""
    local_rows = values.shape[-1]
    if local_rows * (rank_count(axes.tensor) if axes.tensor else 1) == vocabulary:
        return values
    return jnp.where(_token_ids(local_rows, axes) < vocabulary, values, jnp.asarray(by, values.dtype))


def token_predictions(
    logits: Float[Array, "r s v"], vocabulary: int, targets: Int[Array, "r s"], axes: Axes
) -> TokenPredictions:
    """Compares logits, of which each tensor rank has a slice of the vocabulary, with targets.

    Args:
        logits: Logits of this rank's slice, in float32; rows behind the vocabulary are padding.
        vocabulary: Size of the whole vocabulary.
        targets: Next tokens, as numbers in the whole vocabulary.
        axes: Mesh axes.
    """
    logits = _replace_padding(logits, vocabulary, _PADDING_LOGIT, axes)
    local = targets - first_vocabulary_row(logits.shape[-1], axes)
    is_local = (local >= 0) & (local < logits.shape[-1])
    largest = lax.stop_gradient(jnp.max(logits, axis=-1))  # [r, s]
    target_logits = jnp.take_along_axis(logits, jnp.where(is_local, local, 0)[..., None], axis=-1)[..., 0]
    target_logits = jnp.where(is_local, target_logits, 0.0)  # [r, s]
    if axes.tensor:
        largest, target_logits = lax.pmax(largest, axes.tensor), lax.psum(target_logits, axes.tensor)
    total = jnp.sum(jnp.exp(logits - largest[..., None]), axis=-1)
    total = lax.psum(total, axes.tensor) if axes.tensor else total
    log_total = jnp.log(total)
    return TokenPredictions(
        logits=logits,
        vocabulary=vocabulary,
        targets=targets,
        target_logits=target_logits,
        log_normalizer=largest + log_total,
        log_likelihood=target_logits - largest - log_total,
        is_most_likely=target_logits >= largest,
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
