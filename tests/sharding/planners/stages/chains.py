"""Small chains with random layers."""

import numpy as np

from sharding.planners.stages.layer_chain import LayerChain
from sharding.specs.layer import RECOMPUTE_POLICIES


def random_chain(seed: int, layers: int, kinds: int, in_flight: int, policies: int = 3) -> LayerChain:
    """A chain of layers of a few kinds in runs; the more seconds a policy takes, the fewer bytes it holds, mostly."""
    random = np.random.default_rng(seed)
    kind = np.sort(random.integers(0, kinds, layers))
    backward = np.sort(random.integers(1, 12, (kinds, policies)) / 4.0, axis=1)
    held = np.sort(random.integers(0, 16, (kinds, policies)), axis=1)[:, ::-1].astype(float)
    workspace = random.integers(0, 6, (kinds, policies)).astype(float)
    workspace[:, 0] = 0.0
    return LayerChain(
        policies=RECOMPUTE_POLICIES[:policies],
        modules=("encoder",) * layers,
        kinds=kind,
        layers=np.ones(layers, int),
        forward=(random.integers(1, 20, kinds) / 4.0)[kind],
        backward=backward[kind],
        held_bytes=(held[:, :, None] * np.arange(1, in_flight + 1))[kind],
        workspace=workspace[kind],
        static_bytes=random.integers(0, 8, kinds).astype(float)[kind],
        parameters=random.integers(1, 9, kinds).astype(float)[kind],
        handed_on=np.ones(layers),
        hop_seconds=(random.integers(0, 8, kinds) / 8.0)[kind],
    )
