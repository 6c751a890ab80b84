"""OrchMLLM's models, batches and layouts, and the figures that it states (arXiv 2503.23830, abstract and section 8)."""

from typing import NamedTuple


class MiniBatches(NamedTuple):
    """Samples of a replica.

    Attributes:
        balanced: Samples on 2,560 devices, with balancing.
        unbalanced: Samples on 2,560 devices, without balancing.
        ablation: Samples on 128 devices, with and without balancing.
    """

    balanced: int
    unbalanced: int
    ablation: int


class Megatron(NamedTuple):
    """Megatron-LM's layout on 2,560 devices.

    Attributes:
        pp: Pipeline ranks of the backbone.
        samples: Samples of a global batch.
    """

    pp: int
    samples: int


class ModelSetting(NamedTuple):
    """The settings with which the paper trains a model.

    Attributes:
        image_bound: The longest side of an image in pixels.
        mini_batches: Samples of a replica.
        megatron: The layout compared with.
    """

    image_bound: int
    mini_batches: MiniBatches
    megatron: Megatron


SETTINGS = {
    "mllm_10b": ModelSetting(448, MiniBatches(80, 65, 75), Megatron(2, 5120)),
    "mllm_18b": ModelSetting(672, MiniBatches(60, 40, 50), Megatron(4, 5120)),
    "mllm_84b": ModelSetting(896, MiniBatches(30, 15, 25), Megatron(10, 2560)),
}
"""Settings by model of configs/models."""

DEVICES, ABLATION_DEVICES = 2560, 128
GROUP = 256
"""Devices of a hybrid group, which divide the weights; all, where there are fewer."""
TENSOR_RANKS = 8
"""Tensor ranks of Megatron-LM's layouts."""

NATIVE_SIDE = 554.0
"""Side in pixels of a square with as many pixels as COCO's images, 640 x 480, for the bounds that do not shrink it."""

PAPER_MFU = {"mllm_84b": 0.416}
PAPER_MOST_OVER_MEGATRON = 3.1

UNBALANCED_GOAL = 1.5
"""Times the throughput of the unbalanced step."""
PLANNING_GOAL_MS = 50.0
PLANNING_SAMPLES = 60
"""Samples of a replica in the paper's measurements of overhead, all of MLLM-10B."""
PLANNING_REPLICAS = (64, 128, 512, 2560)
