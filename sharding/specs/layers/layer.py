"""A layer as its kernels: FLOPs, memory traffic, saved and sent elements, as functions of the load it is given.

A load is an array [..., 4] of what a microbatch brings to a module, with the columns of `LoadColumn`. Attention is
counted per segment, so that neither padding nor packing adds to it.
"""

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float

from sharding.expert_transfer import Routing

Loads = Float[np.ndarray, "*shape 4"]
Number = int | float
Numbers = Number | np.number | np.ndarray

ComputeKind = Literal["matmul", "attention", "convolution", "memory"]
CollectiveKind = Literal["all_gather", "reduce_scatter", "dispatch", "combine"]
KernelKind = ComputeKind | CollectiveKind
RankGroup = Literal["tensor", "expert"]
SplitSide = Literal["columns", "rows", "groups"]
RecomputePolicy = Literal["none", "selective", "offload", "full"]

COLLECTIVE_KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
MATMUL_KINDS: tuple[ComputeKind, ...] = ("matmul", "convolution")
"""A convolution is computed as the matmul of its patches with its weights."""
RECOMPUTE_POLICIES: tuple[RecomputePolicy, ...] = get_args(RecomputePolicy)


class LoadColumn(enum.IntEnum):
    """Columns of a load."""

    TOKENS = 0
    """Tokens: text tokens, patches or audio positions."""
    SQUARED_LENGTHS = 1
    """Sum over segments of the squared segment length."""
    ITEMS = 2
    """Images or clips; samples, of the backbone."""
    LOCAL_PAIRS = 3
    """Pairs of a query and a key that each layer with local attention computes (`local_attention.py`)."""


def make_loads(
    tokens: Numbers = 0, squared_lengths: Numbers = 0, items: Numbers = 0, local_pairs: Numbers = 0
) -> Loads:
    """Loads from their columns, which broadcast against each other."""
    columns = (tokens, squared_lengths, items, local_pairs)
    return np.stack(np.broadcast_arrays(*(np.asarray(column, float) for column in columns)), axis=-1)


@dataclasses.dataclass(frozen=True)
class PerLoad:
    """A quantity that is linear in the load.

    Attributes:
        tokens: Amount per token.
        squared_lengths: Amount per squared token of a segment's length.
        items: Amount per item.
        local_pairs: Amount per pair of a query and a key of local attention.
    """

    tokens: Number = 0
    squared_lengths: Number = 0
    items: Number = 0
    local_pairs: Number = 0

    @property
    def columns(self) -> tuple[Number, Number, Number, Number]:
        """Amounts per column of a load."""
        return self.tokens, self.squared_lengths, self.items, self.local_pairs

    def evaluate(self, loads: Loads) -> Float[np.ndarray, "*shape"]:
        """The quantity for each load."""
        return np.asarray(loads @ np.array(self.columns, float))

    def __add__(self, other: "PerLoad") -> "PerLoad":
        return PerLoad(*(column + more for column, more in zip(self.columns, other.columns, strict=True)))

    def __mul__(self, factor: Number) -> "PerLoad":
        return PerLoad(*(amount * factor for amount in self.columns))


ZERO = PerLoad()


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel launch of a layer's forward.

    Attributes:
        name: Name for people.
        kind: What limits it: arithmetic (`matmul`, `attention`, `convolution`), memory traffic (`memory`), or a
            collective.
        flops: FLOPs of all tensor ranks together. Every expert rank receives as many tokens as it sends away, so that
            experts compute on a replica's tokens, top-k times.
        activations: Elements of activations read and written. Of a collective over tensor ranks, the elements of the
            whole array; over expert ranks, the elements of one replica's tokens on their way to the experts (dispatch)
            and back (combine), by the transfer that `sharding.expert_transfer` chooses.
        weights: Elements of parameters read.
        split: Whether the tensor ranks divide the kernel. If not, each rank runs all of it, or its share of the tokens
            where tensor ranks divide the sequence.
        rank_group: Of a collective, the ranks that it joins; of a matmul, `expert` if expert ranks also divide its
            weights.
        ring_elements: Elements of keys and values that context-parallel ranks send around the ring meanwhile; attention
            only.
        masked_flops: FLOPs beyond `flops` if masked positions were computed too: causal attention's other half.
        inner: Of a matmul or a convolution, elements of each product's sum: rows of the weights.
        outer: Elements of each row of its output: columns of the weights.
        groups: Equal matmuls with weights of their own, which divide the rows: experts.
        split_by: The dimension of a matmul that the tensor ranks divide: columns of the weights, rows, or the groups.
        head_width: Width of a head; attention only.
        always_recomputed: Whether the backward runs it again whatever the recomputation policy.
        fp8: Whether the operands of a matmul and of its gradients are in FP8 (`TransformerConfig.fp8`).
    """

    name: str
    kind: KernelKind
    flops: PerLoad = ZERO
    activations: PerLoad = ZERO
    _: dataclasses.KW_ONLY
    weights: int = 0
    split: bool = True
    rank_group: RankGroup = "tensor"
    ring_elements: PerLoad = ZERO
    masked_flops: PerLoad = ZERO
    inner: int = 0
    outer: int = 0
    groups: int = 1
    split_by: SplitSide = "columns"
    head_width: int = 0
    always_recomputed: bool = False
    fp8: bool = False

    def __post_init__(self) -> None:
        if self.kind in MATMUL_KINDS and min(self.inner, self.outer, self.groups) < 1:
            sizes = f"inner {self.inner}, outer {self.outer}, groups {self.groups}"
            raise ValueError(f"kernel {self.name} is a {self.kind} with {sizes}; all must be at least 1")
        if self.kind == "attention" and self.head_width < 1:
            raise ValueError(
                f"kernel {self.name} is attention with head_width {self.head_width}; it must be at least 1"
            )


class KernelArrays(NamedTuple):
    """The kernels of a layer side by side, k of them, with the columns of a load.

    Attributes:
        flops: As in `Kernel`.
        activations: As in `Kernel`.
        weights: As in `Kernel`.
        split: As in `Kernel`.
        expert: Whether expert ranks divide the weights.
    """

    flops: Float[np.ndarray, "k 4"]
    activations: Float[np.ndarray, "k 4"]
    weights: Float[np.ndarray, " k"]
    split: Bool[np.ndarray, " k"]
    expert: Bool[np.ndarray, " k"]


@dataclasses.dataclass(frozen=True)
class SavedActivations:
    """Elements saved from forward to backward.

    Attributes:
        split: Elements that the tensor ranks divide.
        replicated: Elements that every tensor rank saves.
        pair_split: Elements for each (token, expert) pair that a rank has room for; tensor ranks divide them.
        pair_replicated: Elements for each such pair that every tensor rank saves.
    """

    split: PerLoad = ZERO
    replicated: PerLoad = ZERO
    pair_split: PerLoad = ZERO
    pair_replicated: PerLoad = ZERO

    def plus(self, other: "SavedActivations") -> "SavedActivations":
        """The sum of two records of saved activations."""
        fields = [field.name for field in dataclasses.fields(self)]
        return SavedActivations(*(getattr(self, name) + getattr(other, name) for name in fields))

    def minus(self, other: "SavedActivations") -> "SavedActivations":
        """The elements saved here beyond the ones saved in another record."""
        fields = [field.name for field in dataclasses.fields(self)]
        return SavedActivations(*(getattr(self, name) + getattr(other, name) * -1 for name in fields))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """A layer of a module.

    Attributes:
        name: Its kind within the module, such as `blocks`; layers of one name are equal.
        part: The trainable part that it belongs to, such as `vision_projector`.
        kernels: Its kernels in the order of the forward.
        parameters: Elements of parameters that the tensor ranks divide.
        replicated_parameters: Elements of parameters that each tensor rank holds.
        expert_parameters: Elements of parameters that the expert ranks and the tensor ranks divide.
        routing: The experts that its router chooses from; None without experts.
        saved: Activations saved on the devices under each recomputation policy.
        output_elements: Elements handed to the next layer or module.
        frozen_by_default: Whether the layer trains only if its part is named. Such a layer reads the batch alone, so
            that no gradient passes through it.
        sequence_parallel: Whether tensor ranks may divide the positions of its input and output
            (`Parallelism.collectives`).
    """

    name: str
    part: str
    kernels: tuple[Kernel, ...]
    parameters: int
    replicated_parameters: int
    expert_parameters: int = 0
    routing: Routing | None = None
    saved: Mapping[RecomputePolicy, SavedActivations]
    output_elements: PerLoad
    frozen_by_default: bool = False
    sequence_parallel: bool = True

    @property
    def parameter_count(self) -> int:
        """Elements of all its parameters."""
        return self.parameters + self.replicated_parameters + self.expert_parameters

    def parameters_per_rank(self, tp: int) -> float:
        """Elements of its parameters, without experts', on one of `tp` tensor ranks."""
        return self.parameters / tp + self.replicated_parameters

    def expert_parameters_per_rank(self, tp: int, ep: int) -> float:
        """Elements of its experts' parameters on one of `tp` tensor ranks of one of `ep` expert ranks."""
        return self.expert_parameters / (tp * ep)

    @functools.cached_property
    def kernel_arrays(self) -> KernelArrays:
        """Its kernels as arrays."""
        return KernelArrays(
            np.array([kernel.flops.columns for kernel in self.kernels], float).reshape(-1, len(LoadColumn)),
            np.array([kernel.activations.columns for kernel in self.kernels], float).reshape(-1, len(LoadColumn)),
            np.array([kernel.weights for kernel in self.kernels], float),
            np.array([kernel.split for kernel in self.kernels], bool),
            np.array([kernel.rank_group == "expert" for kernel in self.kernels], bool),
        )

    @property
    def offloaded(self) -> SavedActivations:
        """Activations that `offload` saves in host memory: all that `selective` saves but the layer's input."""
        return self.saved["selective"].minus(self.saved["offload"])

    @property
    def uses_fp8(self) -> bool:
        """Whether some of its matmuls have FP8 operands."""
        return any(kernel.fp8 for kernel in self.kernels)

    @property
    def flops(self) -> PerLoad:
        """FLOPs of one forward."""
        return sum((kernel.flops for kernel in self.kernels), start=ZERO)


def matmul(
    name: str,
    inputs: int,
    outputs: int,
    rows_per_token: Number = 1,
    *,
    split: bool = True,
    split_by: SplitSide = "columns",
    fp8: bool = False,
) -> Kernel:
    """The kernel of `[tokens * rows_per_token, inputs] @ [inputs, outputs]`."""
    kernel = matmul_of_rows(name, inputs, outputs, PerLoad(rows_per_token), split=split, split_by=split_by)
    return dataclasses.replace(kernel, fp8=fp8)


def matmul_of_rows(
    name: str, inputs: int, outputs: int, rows: PerLoad, *, split: bool = True, split_by: SplitSide = "columns"
) -> Kernel:
    """The kernel of `[rows, inputs] @ [inputs, outputs]`."""
    return Kernel(
        name,
        "matmul",
        flops=rows * (2 * inputs * outputs),
        activations=rows * (inputs + outputs),
        weights=inputs * outputs,
        split=split,
        inner=inputs,
        outer=outputs,
        split_by=split_by,
    )


def expert_matmul(
    name: str,
    inputs: int,
    outputs: int,
    top_k: Number,
    experts: int,
    *,
    split: bool = True,
    split_by: SplitSide = "columns",
) -> Kernel:
    """The kernel of `[tokens * top_k, inputs] @ [inputs, outputs]`, with the weights of `experts` experts."""
    one_expert = matmul(name, inputs, outputs, top_k, split=split, split_by=split_by)
    return dataclasses.replace(one_expert, weights=experts * one_expert.weights, rank_group="expert", groups=experts)


def memory_bound(name: str, elements_per_token: Number, *, split: bool = True) -> Kernel:
    """A norm, an activation function or the like, by the elements that it reads and writes per token."""
    return Kernel(name, "memory", activations=PerLoad(elements_per_token), split=split)


def all_gather(width: Number) -> Kernel:
    """The all-gather of the activation over tensor ranks before a matmul split by columns (g of arXiv 2205.05198)."""
    return Kernel("gather", "all_gather", activations=PerLoad(width))


def reduce_scatter(width: Number) -> Kernel:
    """The sum over tensor ranks after a matmul split by rows, the conjugate of `all_gather`."""
    return Kernel("scatter", "reduce_scatter", activations=PerLoad(width))


def expert_dispatch(width: Number, top_k: Number) -> Kernel:
    """The collective before the experts: tokens go to their ranks, with 4-byte numbers and weights of experts."""
    elements = width + 2 * (2 * top_k)  # twice the bytes of an element in compute precision
    return Kernel("expert_dispatch", "dispatch", activations=PerLoad(elements), split=False, rank_group="expert")


def expert_combine(width: Number) -> Kernel:
    """The collective after the experts: every replica gets the sums for its own tokens."""
    return Kernel("expert_combine", "combine", activations=PerLoad(width), split=False, rank_group="expert")


def saved_by_policy(saved: SavedActivations, inputs: SavedActivations) -> dict[RecomputePolicy, SavedActivations]:
    """Activations that a layer saves under each policy, if it has nothing that `selective` would recompute."""
    return {"none": saved, "selective": saved, "offload": inputs, "full": inputs}
