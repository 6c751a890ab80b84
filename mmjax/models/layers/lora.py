"""LoRA adapters on the projections of a module (arXiv 2106.09685), and merging them into the weights.

`model.model_modules` adds them, the engine joins their parameters to a layer's, and generation and export merge them.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from configs.common.errors import UserError
from configs.modules.lora import LoraConfig
from mmjax.models.layers.linear import Linear, normal_parameter
from mmjax.models.layers.tensor_parallel import WeightSplit, tensor_parallel_matmul
from mmjax.models.structure.module import Module, Piece, PieceModule
from sharding.axes import Axes
from sharding.trees import Tree, get_leaf, set_leaf

ADAPTER = "adapter"
"""Key of an adapter's parameters, next to the key of the kernel that it adapts."""

ADAPTED_LAYERS = ("attention", "self_attention", "second_attention", "mlp")
"""Names of the layers whose projections may have adapters."""


class LoraAdapter(nnx.Module):
    """scale * up(down(x)), which is 0 at the start; split over the tensor axes like the projection that it adapts."""

    def __init__(self, projection: Linear, rank: int, scale: float) -> None:
        """Creates down `[inputs, rank]` and up `[rank, outputs]`, for a projection `[inputs, outputs]`."""
        inputs, outputs = projection.kernel.shape
        self.split: WeightSplit = projection.split
        self.scale = scale
        rows, columns = ("tensor" if self.split == split else None for split in ("rows", "columns"))
        self.down = normal_parameter((inputs, rank), (rows, None), inputs**-0.5)
        self.up = normal_parameter((rank, outputs), (None, columns), 0.0)

    @jax.named_scope("lora")
    def __call__(self, x: Float[Array, "..."], axes: Axes) -> Float[Array, "..."]:
        """Returns the summand of the projection of x: `[..., inputs]` to `[..., outputs]`."""
        down_split: WeightSplit = "rows" if self.split == "rows" else None
        up_split: WeightSplit = "columns" if self.split == "columns" else None
        hidden = tensor_parallel_matmul(x, self.down[...], down_split, axes)  # [..., rank]
        return self.scale * tensor_parallel_matmul(hidden, self.up[...], up_split, axes)


def add_adapters(module: Module, lora: LoraConfig) -> Module:
    """Adds adapters to the part of a module that the configuration names.

    Every piece of the part that has target projections is followed by a new piece, which owns their adapters.

    Returns:
        The module itself if it does not have the part.

    Raises:
        UserError: The module has the part, but none of the target projections.
    """
    if lora.part not in {piece.part for piece in module.pieces}:
        return module
    pieces: list[Piece] = []
    for piece in module.pieces:
        if piece.part != lora.part or not target_projections(nnx.eval_shape(piece.build), lora):
            pieces.append(piece)
            continue
        build = functools.partial(build_with_adapters, piece.build, lora)
        pieces.append(dataclasses.replace(piece, build=build, parameter_filter=_is_base_path))
        pieces.append(
            Piece(
                name=f"{piece.name}_lora",
                part=lora.name,
                build=build,
                layers=piece.layers,
                parameter_filter=is_adapter_path,
                adapter_of=piece.name,
            )
        )
    if len(pieces) == len(module.pieces):
        raise UserError(
            f"ModelConfig.lora adapts {', '.join(lora.targets)} of {lora.part}, which has none of them (experts have "
            "no adapters); name others in LoraConfig.targets"
        )
    return dataclasses.replace(module, pieces=tuple(pieces))


def build_with_adapters(build: Callable[[], PieceModule], lora: LoraConfig) -> PieceModule:
    """Builds a Flax module and attaches an adapter to every target projection."""
    module = build()
    for projection in target_projections(module, lora):
        projection.adapter = LoraAdapter(projection, lora.rank, lora.scale)
    return module


def target_projections(module: nnx.Module, lora: LoraConfig) -> list[Linear]:
    """Returns the projections of a Flax module that `LoraConfig.targets` names."""
    return [
        child
        for path, child in nnx.iter_modules(module)
        if isinstance(child, Linear) and len(path) > 1 and path[-1] in lora.targets and path[-2] in ADAPTED_LAYERS
    ]


def is_adapter_path(path: str) -> bool:
    """Whether the parameter at this path in a layer belongs to an adapter."""
    return f"/{ADAPTER}/" in path


def _is_base_path(path: str) -> bool:
    return not is_adapter_path(path)


def join_adapters(parameters: Tree, adapters: Tree) -> Tree:
    """Joins a layer's own parameters and its adapters' parameters into one tree."""
    tree = dict(parameters)
    for name, subtree in adapters.items():
        tree[name] = join_adapters(tree[name], subtree) if name in tree else subtree
    return tree


def merge_layer_adapters(parameters: Tree, adapters: Tree, scale: float) -> Tree:
    """Returns a layer's parameters, with kernel + scale * down @ up for adapted kernels, in the kernel's precision."""
    for path in _adapted_projections(adapters):
        down, up = (get_leaf(adapters, f"{path}/{ADAPTER}/{name}") for name in ("down", "up"))
        kernel = get_leaf(parameters, f"{path}/kernel")
        library = np if isinstance(kernel, np.ndarray) else jnp
        update = library.matmul(down, up) * library.asarray(scale, kernel.dtype)
        parameters = set_leaf(parameters, f"{path}/kernel", kernel + update)
    return parameters


def _adapted_projections(adapters: Tree, prefix: str = "") -> list[str]:
    """Paths of the projections that have an adapter."""
    if ADAPTER in adapters:
        return [prefix]
    return [
        path
        for name, subtree in adapters.items()
        for path in _adapted_projections(subtree, f"{prefix}/{name}".lstrip("/"))
    ]


def merge_model_adapters(parameters: Tree, modules: Iterable[Module], adapters: tuple[LoraConfig, ...]) -> Tree:
    """Returns a model's parameters, `{module: {piece: {layer: {...}}}}`, with all adapters merged into the kernels."""
    scales = {lora.part: lora.scale for lora in adapters}
    return {module.name: _merge_module_adapters(parameters[module.name], module, scales) for module in modules}


def _merge_module_adapters(parameters: Tree, module: Module, scales: Mapping[str, float]) -> Tree:
    merged = {piece.name: parameters[piece.name] for piece in module.compute_pieces}
    for piece_name, layers in merged.items():
        if adapter_piece := module.adapter_piece(piece_name):
            adapters, scale = parameters[adapter_piece], scales[module.name]
            merged[piece_name] = {
                layer: merge_layer_adapters(tree, adapters[layer], scale) for layer, tree in layers.items()
            }
    return merged
