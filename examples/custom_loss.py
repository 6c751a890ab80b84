"""Losses of your own: label smoothing with a z-loss for the language model, min-SNR weights for the image generator.

    python examples/custom_loss.py

trains a tiny model for a few steps. For the commands, in the folder of this file (copy it and custom_loss.gin):

    python -m mmjax.train --gin_file=custom_loss.gin
    python -m mmjax.verify --gin_file=custom_loss.gin
"""

import dataclasses

import jax
import jax.numpy as jnp

import mmjax
from mmjax.models.modalities.losses import DenoisingPredictions, LossTerms, TokenPredictions


@dataclasses.dataclass(frozen=True)
class SmoothedCrossEntropy:
    """Label smoothing (arXiv 1512.00567, section 7) with a z-loss (arXiv 2204.02311, section 5)."""

    smoothing: float = 0.1
    z_weight: float = 1e-4

    def __call__(self, predictions: TokenPredictions) -> LossTerms:
        """Returns the loss of every target token; the z-loss is reported as loss/backbone/z_loss."""
        expected_logits = (1 - self.smoothing) * predictions.target_logits + self.smoothing * predictions.mean_logits
        return LossTerms(
            predictions.log_normalizer - expected_logits,
            {"z_loss": self.z_weight * jnp.square(predictions.log_normalizer)},
        )


@dataclasses.dataclass(frozen=True)
class MinSNR:
    """Weights of noisy images by min(SNR, gamma) (arXiv 2303.09556, section 3.4), for the generator's prediction."""

    gamma: float = 5.0

    def __call__(self, predictions: DenoisingPredictions) -> jax.Array:
        """Returns the loss of every image."""
        ratio = predictions.signal_to_noise
        of_image = jnp.minimum(ratio, self.gamma)  # the weight if the generator predicted the image itself
        of_noise = of_image / ratio
        of_velocity = of_image * jnp.square(predictions.noise_scale)  # of a rectified flow too
        return (of_noise if predictions.prediction == "epsilon" else of_velocity) * predictions.mean_squared_errors


def main() -> None:
    """Trains with both losses."""
    config = mmjax.load("tiny.gin", steps=3)
    backbone = dataclasses.replace(config.model.backbone, loss=SmoothedCrossEntropy())
    generators = tuple(dataclasses.replace(generator, loss=MinSNR()) for generator in config.model.generators)
    model = dataclasses.replace(config.model, backbone=backbone, generators=generators)
    trainer = mmjax.Trainer(dataclasses.replace(config, model=model))
    for _ in range(config.steps):
        print(trainer.step())


if __name__ == "__main__":
    main()
