"""Replacement targets, some of which a model predicts correctly; the reference puts them into its batches.

For an untrained model hardly any target is the likeliest token, so that a layout which calls all of them wrong would
agree with the reference.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig
from data.packing.global_batch import GlobalBatch
from mmjax.models.layers.reference_implementations import use_reference_implementations
from mmjax.models.modalities.losses import TokenPredictions
from mmjax.models.model import model_modules, run_model
from sharding.trees import Tree


class LikelyTokens(NamedTuple):
    """The likeliest tokens, `[samples, s]` each; margins are differences of logits over the largest absolute logit.

    Attributes:
        tokens: The likeliest token.
        margin: Margin between the likeliest token and the next.
        target_margin: Margin between the likeliest token and the target.
    """

    tokens: np.ndarray
    margin: np.ndarray
    target_margin: np.ndarray

    def replace_targets(self, backbone: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Replaces the targets of about every second answer by the likeliest tokens; returns targets and margins.

        Args:
            backbone: The backbone's arrays, a sample in a row.

        Returns:
            The targets, and the margin by which each is the likeliest token or is not; below zero without a target.
        """
        is_target = backbone["weights"] > 0
        is_replaced = is_target & ((np.arange(len(is_target))[:, None] + backbone["branches"]) % 2 == 0)
        targets = np.where(is_replaced, self.tokens, backbone["targets"]).astype(backbone["targets"].dtype)
        margins = np.where(targets == self.tokens, self.margin, self.target_margin)
        return targets, np.where(is_target, margins, -1.0)


def likely_tokens(config: ModelConfig) -> Callable[[Tree, Mapping[str, Any], jax.Array], LikelyTokens]:
    """Makes the function `(parameters, arrays by module, [seed, step])` to a model's likeliest tokens on one device."""

    @jax.jit
    def compiled(
        parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        predictions: list[TokenPredictions] = []

        def keep(found: TokenPredictions) -> jax.Array:
            predictions.append(found)
            return found.log_likelihood

        backbone = dataclasses.replace(config.backbone, loss=keep)
        batch = {name: {**module_arrays, "seed_and_step": seed_and_step} for name, module_arrays in arrays.items()}
        with use_reference_implementations():
            run_model(model_modules(dataclasses.replace(config, backbone=backbone)), parameters, batch)
        (found,) = predictions
        logits = found.chunks.whole()
        (first, second), tokens = jnp.moveaxis(jax.lax.top_k(logits, 2)[0], -1, 0), jnp.argmax(logits, -1)
        scale = jnp.max(jnp.abs(logits), axis=-1)
        return tokens, (first - second) / scale, (first - found.target_logits) / scale

    return lambda *arguments: LikelyTokens(*map(np.asarray, compiled(*arguments)))


def in_packed_rows(batch: GlobalBatch, backbone: str, values: np.ndarray, elsewhere: np.ndarray) -> np.ndarray:
    """Places the values of every sample's tokens at the positions of these tokens in the rows of a batch.

    Args:
        batch: The batch.
        backbone: Name of the module whose rows they are.
        values: `[samples, s]`, the samples in the order of the batch.
        elsewhere: `[n, s of a row]`, the values of padding.
    """
    packed, segments = np.array(elsewhere), batch.arrays[backbone]["segments"]
    for sample, (row, slot) in enumerate(np.argwhere(batch.sample_ids >= 0)):
        is_token = segments[row] == slot + 1
        packed[row, is_token] = values[sample, : np.count_nonzero(is_token)]
    return packed


def replace_packed_targets(batch: GlobalBatch, backbone: str, targets: np.ndarray) -> GlobalBatch:
    """Returns the batch with other targets, `[n, s]`."""
    arrays = {**batch.arrays, backbone: {**batch.arrays[backbone], "targets": targets}}
    return dataclasses.replace(batch, arrays=arrays)
