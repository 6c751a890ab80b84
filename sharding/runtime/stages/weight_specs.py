"""How a parameter's master weights and compute weights are divided over a stage's mesh.

A dimension that its tensor ranks do not divide evenly, a vocabulary, is padded in compute weights. Master weights have
no padding: tensor ranks divide another dimension of theirs.
"""

import math
from typing import Any

from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from sharding.axes import Axes

Split = tuple[str | None, ...]
"""For every dimension of a parameter the kind of axes that divides it: "tensor", "expert" or None."""


def _mesh_axes(split: Split, axes: Axes) -> tuple[Any, ...]:
    axes_by_purpose = {"tensor": axes.tensor, "expert": axes.expert, None: None}
    return tuple(axes_by_purpose[purpose] for purpose in split)


def axis_names(entry: Any) -> tuple[str, ...]:
    """Returns the mesh axes of an entry of a spec."""
    return entry if isinstance(entry, tuple) else (entry,) if entry else ()


def replicated_data_axes(spec: P, axes: Axes) -> tuple[str, ...]:
    """The axes of `Axes.replicas` along which every rank holds the same shard of a parameter, which its spec lacks."""
    used = {name for entry in spec for name in axis_names(entry)}
    return tuple(name for name in axes.replicas if name not in used)


def compute_spec(shape: tuple[int, ...], split: Split, mesh: Mesh, axes: Axes) -> P:
    """The spec of a parameter's compute weights outside of the layers that use them.

    Dimensions that the module splits stay split; of the others, the axes of `Axes.fsdp` divide the largest that they
    divide evenly, if there is one.
    """
    return P(*_compute_entries(shape, split, mesh, axes))


def padded_shape(shape: tuple[int, ...], split: Split, mesh: Mesh, axes: Axes) -> tuple[int, ...]:
    """The shape of a parameter's compute weights: equal shards for all ranks, so perhaps with padding."""
    ranks = (device_count_along(mesh, axis_names(entry)) for entry in _mesh_axes(split, axes))
    return tuple(-(-size // count) * count for size, count in zip(shape, ranks, strict=True))


def unpadded_spec(shape: tuple[int, ...], split: Split, mesh: Mesh, axes: Axes) -> P:
    """The compute spec, but for an array without padding: axes that do not divide a dimension divide another one."""
    return P(*_unpadded_entries(shape, split, mesh, axes)[0])


def master_spec(shape: tuple[int, ...], split: Split, mesh: Mesh, axes: Axes) -> P:
    """The spec of a parameter's master weights.

    They are divided as the compute weights are, but never padded (`unpadded_spec`). The remaining data axes divide the
    same dimension further, or the largest that nothing divides, where they divide it evenly. So do pipeline axes, which
    divide the layers of a stack: each layer's master weights are on all pipeline ranks.
    """
    spec, divided_further = _unpadded_entries(shape, split, mesh, axes)
    data_axes = replicated_data_axes(P(*spec), axes)
    further = [names for names in ((*data_axes, *axes.pipeline), data_axes, axes.pipeline) if names]
    if divided_further is not None:
        own_axes = axis_names(spec[divided_further])
        for names in further:
            if shape[divided_further] % device_count_along(mesh, (*own_axes, *names)) == 0:
                spec[divided_further] = (*own_axes, *names)
                return P(*spec)
    divided = (_with_largest_divided(shape, list(spec), mesh, names) for names in further)
    return P(*next((divided_spec for divided_spec in divided if divided_spec != spec), spec))


def _compute_entries(shape: tuple[int, ...], split: Split, mesh: Mesh, axes: Axes) -> list[Any]:
    """The entries of `compute_spec`; one that the module splits over no axis is an empty tuple, not None."""
    spec = list(_mesh_axes(split, axes))
    sharding_axes = tuple(name for name in axes.fsdp if name in replicated_data_axes(P(*spec), axes))
    return _with_largest_divided(shape, spec, mesh, sharding_axes)


def _unpadded_entries(shape: tuple[int, ...], split: Split, mesh: Mesh, axes: Axes) -> tuple[list[Any], int | None]:
    """The entries of `unpadded_spec`, and the dimension that master weights divide further, if one is chosen already.

    It is the dimension that axes were moved to, or the one divided over `Axes.fsdp`.
    """
    spec = _compute_entries(shape, split, mesh, axes)
    sharded = fully_sharded_dimension(P(*spec), axes)
    divided_further = sharded[0] if sharded else None
    for dim, entry in enumerate(spec):
        names = axis_names(entry)
        if shape[dim] % device_count_along(mesh, names) == 0:
            continue
        spec[dim] = None
        divided = [(*axis_names(other), *names) for other in spec]
        even = [at for at in range(len(spec)) if at != dim and shape[at] % device_count_along(mesh, divided[at]) == 0]
        if even:
            divided_further = max(even, key=lambda at: shape[at])
            spec[divided_further] = divided[divided_further]
    return spec, divided_further


def _with_largest_divided(shape: tuple[int, ...], spec: list[Any], mesh: Mesh, axes: tuple[str, ...]) -> list[Any]:
    """The entries with the largest dimension that nothing divides divided over `axes`, if one can be."""
    ranks = device_count_along(mesh, axes)
    divisible = [dim for dim, entry in enumerate(spec) if entry is None and shape[dim] % ranks == 0]
    if divisible and ranks > 1:
        spec[max(divisible, key=lambda dim: shape[dim])] = axes
    return spec


def fully_sharded_dimension(spec: P, axes: Axes) -> tuple[int, tuple[str, ...]] | None:
    """The dimension of a parameter that its compute spec divides over axes of `Axes.fsdp`, and these; None for none.

    A dimension of experts, which the expert axes alone divide, is not meant.
    """
    for dim, entry in enumerate(spec):
        names = entry if isinstance(entry, tuple) else (entry,)
        if set(names) & (set(axes.fsdp) - set(axes.expert)):
            return dim, names
    return None


def device_count_along(mesh: Mesh, names: tuple[str, ...]) -> int:
    """Number of devices along some mesh axes together."""
    return math.prod(mesh.shape[name] for name in names)


def is_partition_spec(leaf: Any) -> bool:
    """Whether a node of a tree is a PartitionSpec; for `is_leaf`."""
    return isinstance(leaf, P)
