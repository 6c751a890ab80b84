"""Small chains with random layers."""

import numpy as np

from sharding.planners.stages.layer_chain import LayerChain
from sharding.specs.layers.layer import RecomputePolicy

POLICIES: tuple[RecomputePolicy, ...] = ("none", "selective", "full")


def random_chain(seed: int, layers: int, kinds: int, in_flight: int) -> LayerChain:
    """A chain of layers of a few kinds in runs; the more seconds a policy takes, the fewer bytes it holds, mostly."""
    random = np.random.default_rng(seed)
    kind = np.sort(random.integers(0, kinds, layers))
    backward = np.sort(random.integers(1, 12, (kinds, len(POLICIES))) / 4.0, axis=1)
    held = np.sort(random.integers(0, 16, (kinds, len(POLICIES))), axis=1)[:, ::-1].astype(float)
    workspace = random.integers(0, 6, (kinds, len(POLICIES))).astype(float)
    workspace[:, 0] = 0.0
    waits = np.sort(random.integers(0, 3, (kinds, len(POLICIES))) / 4.0, axis=1)
    forward = random.integers(1, 20, (kinds, 1)) / 4.0 + waits
    return LayerChain(
        policies=POLICIES,
        modules=("encoder",) * layers,
        kinds=kind,
        layers=np.ones(layers, int),
        forward=forward[kind],
        backward=backward[kind],
        held_bytes=(held[:, :, None] * np.arange(1, in_flight + 1))[kind],
        workspace=workspace[kind],
        static_bytes=random.integers(0, 8, kinds).astype(float)[kind],
        parameters=random.integers(1, 9, kinds).astype(float)[kind],
        handed_on=np.ones(layers),
        hop_seconds=(random.integers(0, 8, kinds) / 8.0)[kind],
        gather_seconds=np.append(random.integers(0, 4, kinds)[kind[:-1]] / 8.0 * (kind[:-1] != kind[1:]), 0.0),
    )
