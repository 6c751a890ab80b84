"""The programs whose schedule is looked at: a layer of Llama3-70B on one row of 8,192 tokens, and its matmuls alone."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.h100_schedule.compilation import TENSOR, tensor_mesh
from configs.architectures import BackboneConfig
from mmjax.models.layers.transformer import block_stack
from mmjax.models.modalities.backbone import BackboneBlock
from mmjax.models.structure.parameters import piece_definition
from pallas_kernels.collective_matmul import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.axes import Axes
from sharding.plans.parallelism import TENSOR_COLLECTIVES
from sharding.trees import Tree

LLAMA3_70B = BackboneConfig(width=8192, depth=80, heads=64, kv_heads=8, ffn=28672, rope_base=5e5)
TOKENS = 8192
DTYPE = jnp.bfloat16

COMPARED_COLLECTIVES = ("all_reduce", "sequence_parallel", "ring")
"""The implementation of tensor parallelism's collectives, as a plan names it (`Parallelism.collectives`)."""


@dataclasses.dataclass(frozen=True)
class ProgramCase:
    """Describes a program to compile.

    Attributes:
        part: `matmuls`, the gated feed-forward layer alone, or `layer`, the whole block.
        ranks: Ranks of tensor parallelism.
        backward: Whether it computes the gradients of input and parameters, with as much of the forward as they need.
            Otherwise it computes the forward.
        collectives: One of `COMPARED_COLLECTIVES`.
    """

    part: str
    ranks: int
    backward: bool
    collectives: str


def build_program(
    case: ProgramCase, config: BackboneConfig = LLAMA3_70B, tokens: int = TOKENS
) -> tuple[Callable, tuple]:
    """The function and the shapes that it is compiled for."""
    sequence, matmul = TENSOR_COLLECTIVES[case.collectives]
    mesh = tensor_mesh(case.ranks)
    axes = Axes(tensor=(TENSOR,), sequence=(TENSOR,) if sequence else (), collective_matmul=matmul)
    forward, parameters, splits = PROGRAM_PARTS[case.part](config, axes)
    parameters = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, DTYPE), parameters)
    x = jax.ShapeDtypeStruct((1, tokens, config.width), DTYPE)
    whole = {name: jax.ShapeDtypeStruct((1, tokens), jnp.int32) for name in BackboneBlock.batch_keys}
    rows = P(None, TENSOR) if axes.sequence else P()

    def backward(parameters: Tree, x: jax.Array, batch: Tree, gradient: jax.Array) -> Any:
        _, pull = jax.vjp(lambda parameters, x: forward(parameters, x, batch), parameters, x)
        return pull(gradient)

    specs, arguments = (splits, rows, P()), (parameters, x, whole)
    if case.backward:
        specs, arguments = (*specs, rows), (*arguments, x)
    body = jax.shard_map(
        backward if case.backward else forward,
        mesh=mesh,
        in_specs=specs,
        out_specs=(splits, rows) if case.backward else rows,
    )
    return body, tuple(_placed(argument, spec, mesh) for argument, spec in zip(arguments, specs, strict=True))


def _placed(tree: Any, specs: Any, mesh: jax.sharding.Mesh) -> Any:
    """Shapes with shardings. One spec may stand for a whole tree."""
    if isinstance(specs, P):
        specs = jax.tree.map(lambda _: specs, tree)
    return jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)),
        tree,
        specs,
    )


def _matmuls(config: BackboneConfig, axes: Axes) -> tuple[Callable, Tree, Tree]:
    """down(silu(gate x) * up x), as `GatedMLP`, from the kernels themselves."""

    def forward(parameters: Tree, x: jax.Array, batch: Tree) -> jax.Array:
        weights = parameters["gate"], parameters["up"]
        if axes.sequence:
            gate, up = all_gather_matmul(x, weights, axes.tensor, backend=axes.collective_matmul)
        else:
            gate, up = (jnp.matmul(x, w) for w in weights)
        last = matmul_reduce_scatter if axes.sequence else matmul_all_reduce
        return last(jax.nn.silu(gate) * up, parameters["down"], axes.tensor, backend=axes.collective_matmul)

    wide, narrow = (config.width, config.ffn), (config.ffn, config.width)
    shapes = {"gate": wide, "up": wide, "down": narrow}
    splits = {"gate": P(None, TENSOR), "up": P(None, TENSOR), "down": P(TENSOR, None)}
    return forward, {name: jax.ShapeDtypeStruct(shape, DTYPE) for name, shape in shapes.items()}, splits


def _layer(config: BackboneConfig, axes: Axes) -> tuple[Callable, Tree, Tree]:
    definition = piece_definition(_stack(config))

    def forward(parameters: Tree, x: jax.Array, batch: Tree) -> jax.Array:
        with use_attention_implementation("cudnn"):  # what a GPU would choose; no GPU is the default device here
            return definition.apply(parameters, x, BackboneBlock.shared_inputs(config, batch), axes)

    splits = jax.tree.map(lambda split: P(*split), definition.splits, is_leaf=lambda leaf: isinstance(leaf, tuple))
    return forward, definition.shapes, splits


@functools.cache
def _stack(config: BackboneConfig) -> Any:
    return block_stack(config, BackboneBlock)


PROGRAM_PARTS: dict[str, Callable[[BackboneConfig, Axes], tuple[Callable, Tree, Tree]]] = {
    "matmuls": _matmuls,
    "layer": _layer,
}
