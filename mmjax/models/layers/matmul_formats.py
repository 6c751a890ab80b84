"""Builds a block and gives those of its matmuls FP8 operands that `TransformerConfig.fp8` names."""

from typing import TypeVar

from flax import nnx

from configs.modules.transformer import TransformerConfig
from mmjax.models.layers.experts import MixtureOfExperts
from mmjax.models.layers.linear import Linear
from mmjax.models.structure.module import PieceModule

Block = TypeVar("Block", bound=PieceModule)


def build_block(kind: type[Block], config: TransformerConfig) -> Block:
    """Builds a block, whose projections and experts have FP8 operands in the layers that the configuration names.

    Norms, biases, the products of attention, the router and the gate of a shared expert keep their precision, and so do
    adapters that are added later.
    """
    build: type = kind  # a type checker knows only that it is some module, not that it takes a configuration
    block = build(config)
    for layer in config.fp8:
        for path, child in nnx.iter_modules(getattr(block, layer)):
            if isinstance(child, Linear | MixtureOfExperts) and "shared_gate" not in path:
                child.matmul_format = "fp8"
    return block
