"""Sinusoidal positions."""

import jax.numpy as jnp
import numpy as np

from mmjax.models.layers.positions import sinusoidal_positions_1d


def test_sinusoidal_positions_differ():
    waves = np.asarray(sinusoidal_positions_1d(jnp.arange(50)[None], 8))[0]
    assert len(np.unique(waves.round(4), axis=0)) == 50
