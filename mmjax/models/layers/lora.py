"""Low-rank adapters on the projections of a module (arXiv 2106.09685), and how they are merged into its weights."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from configs.errors import UserError
from configs.lora import LoraConfig
from mmjax.models.layers.linear import Linear, normal_parameter
from mmjax.models.layers.tensor_parallel import tensor_parallel_matmul
from mmjax.models.structure.module import Module, Piece
from sharding.axes import Axes
from sharding.trees import Tree, get_leaf, set_leaf

ADAPTER = "adapter"
PARENTS = ("attention", "self_attention", "second_attention", "mlp")
"""What holds the projections that may be adapted."""


class LoraAdapter(nnx.Module):
    """scale * up(down(x)); it starts at 0. Split over the tensor axes as the projection it stands beside."""

    def __init__(self, beside: Linear, rank: int, scale: float) -> None:
        inputs, outputs = beside.kernel.shape
        self.split, self.scale = beside.split, scale
        rows, columns = ("tensor" if self.split == of else None for of in ("rows", "columns"))
        self.down = normal_parameter((inputs, rank), (rows, None), inputs**-0.5)
        self.up = normal_parameter((rank, outputs), (None, columns), 0.0)

    def __call__(self, x: Float[Array, "..."], axes: Axes) -> Float[Array, "..."]:
        """What is added to the projection of x."""
        first, second = ("rows", None) if self.split == "rows" else (None, self.split)
        inner = tensor_parallel_matmul(x, self.down[...], first, axes)
        return self.scale * tensor_parallel_matmul(inner, self.up[...], second, axes)


def add_adapters(module: Module, lora: LoraConfig) -> Module:
    """The module with adapters: beside every piece of the part that has projections, a piece that is their adapters.

    Raises:
        UserError: It is the part, and none of its projections is a target.
    """
    if lora.part not in {piece.part for piece in module.pieces}:
        return module
    pieces: list[Piece] = []
    for piece in module.pieces:
        if piece.part != lora.part or not target_projections(nnx.eval_shape(piece.build), lora):
            pieces.append(piece)
            continue
        build = functools.partial(build_with_adapters, piece.build, lora)
        pieces.append(dataclasses.replace(piece, build=build, parameter_filter=_is_base))
        pieces.append(
            Piece(
                f"{piece.name}_lora",
                lora.name,
                build,
                piece.layers,
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


def build_with_adapters(build: Callable[[], nnx.Module], lora: LoraConfig) -> nnx.Module:
    """The Flax module that `build` makes, with an adapter beside every projection that is a target."""
    module = build()
    for projection in target_projections(module, lora):
        projection.adapter = LoraAdapter(projection, lora.rank, lora.scale)
    return module


def target_projections(module: nnx.Module, lora: LoraConfig) -> list[Linear]:
    """The projections of a Flax module that are targets."""
    return [
        found
        for path, found in nnx.iter_modules(module)
        if isinstance(found, Linear) and len(path) > 1 and path[-1] in lora.targets and path[-2] in PARENTS
    ]


def is_adapter_path(path: str) -> bool:
    """Whether a parameter of a layer, by its path, is an adapter's."""
    return f"/{ADAPTER}/" in path


def _is_base(path: str) -> bool:
    return not is_adapter_path(path)


def join_adapters(parameters: Tree, adapters: Tree) -> Tree:
    """A layer's own parameters and its adapters', in one tree."""
    tree = dict(parameters)
    for name, below in adapters.items():
        tree[name] = join_adapters(tree[name], below) if name in tree else below
    return tree


def merge_layer_adapters(parameters: Tree, adapters: Tree, scale: float) -> Tree:
    """A layer's parameters with the adapters added to its kernels, in their precision."""
    for path in _projection_paths(adapters):
        down, up = (get_leaf(adapters, f"{path}/{ADAPTER}/{name}") for name in ("down", "up"))
        kernel = get_leaf(parameters, f"{path}/kernel")
        library = np if isinstance(kernel, np.ndarray) else jnp
        added = library.matmul(down, up) * library.asarray(scale, kernel.dtype)
        parameters = set_leaf(parameters, f"{path}/kernel", kernel + added)
    return parameters


def _projection_paths(adapters: Tree, before: str = "") -> list[str]:
    if ADAPTER in adapters:
        return [before]
    return [
        path for name, below in adapters.items() for path in _projection_paths(below, f"{before}/{name}".lstrip("/"))
    ]


def merge_model_adapters(parameters: Tree, modules: Iterable[Module], adapters: tuple[LoraConfig, ...]) -> Tree:
    """The parameters of a model, `{module: {piece: {layer: {...}}}}`, with its adapters merged and gone."""
    scales = {lora.part: lora.scale for lora in adapters}
    return {module.name: _merged_module(parameters[module.name], module, scales) for module in modules}


def _merged_module(parameters: Tree, module: Module, scales: Mapping[str, float]) -> Tree:
    found = {piece.name: parameters[piece.name] for piece in module.compute_pieces}
    for name, layers in found.items():
        if adapters := module.adapter_piece(name):
            scale = scales[module.name]
            pairs = parameters[adapters]
            found[name] = {layer: merge_layer_adapters(below, pairs[layer], scale) for layer, below in layers.items()}
    return found
