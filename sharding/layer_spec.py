"""A layer as its kernels: what it computes, moves, holds and sends, as functions of the load it is given.

A load is an array [..., 3] of what a microbatch brings to a module: tokens (patches, audio positions), the sum of the
squares of its segments' lengths, and items (images or clips). Attention is counted by segment: padding costs nothing
there, and neither does packing.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

Loads = Float[np.ndarray, "*shape 3"]
Number = int | float
LOAD_NAMES = ("tokens", "squares", "items")
COMPUTE_KINDS = ("matmul", "attention", "convolution", "memory")
COLLECTIVE_KINDS = ("all_gather", "reduce_scatter")
RANKS = ("tensor", "expert")


@dataclasses.dataclass(frozen=True)
class Amount:
    """So much per token, per squared segment and per item."""

    tokens: Number = 0
    squares: Number = 0
    items: Number = 0

    def of(self, loads: Loads) -> Float[np.ndarray, "*shape"]:
        """The amount for each load."""
        return np.asarray(loads @ np.array((self.tokens, self.squares, self.items), float))

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.tokens + other.tokens, self.squares + other.squares, self.items + other.items)

    def __mul__(self, factor: Number) -> "Amount":
        return Amount(self.tokens * factor, self.squares * factor, self.items * factor)


NOTHING = Amount()


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One launch of a layer's forward.

    Attributes:
        name: For people.
        kind: One of COMPUTE_KINDS, or a collective.
        flops: Work of all tensor ranks together. Every expert rank has as many tokens as it sends away, so that what
            experts compute is that of an instance's tokens, top-k times.
        elements: Numbers of activations read and written. For a collective over tensor ranks, of the whole array; over
            expert ranks, of one instance: each has that of all in front of its experts (all_gather), or sums it for all
            behind them (reduce_scatter).
        weights: Numbers of parameters read.
        split: Whether the tensor ranks divide it; if not, each does it whole, or its part of the tokens where they
            divide the sequence.
        ranks: Of RANKS: of a collective, those that it joins; of a matmul, `expert` if they divide its weights too.
        ring: Numbers of keys and values that sequence ranks pass around while it computes; only attention has them.
    """

    name: str
    kind: str
    flops: Amount = NOTHING
    elements: Amount = NOTHING
    weights: int = 0
    split: bool = True
    ranks: str = "tensor"
    ring: Amount = NOTHING

    def __post_init__(self) -> None:
        for field, known in (("kind", COMPUTE_KINDS + COLLECTIVE_KINDS), ("ranks", RANKS)):
            if getattr(self, field) not in known:
                raise ValueError(
                    f"kernel {self.name}: there is no {field} {getattr(self, field)!r}; choose from {', '.join(known)}"
                )


@dataclasses.dataclass(frozen=True)
class Kept:
    """Numbers kept from forward to backward: what the tensor ranks divide, and what each keeps whole."""

    split: Amount = NOTHING
    whole: Amount = NOTHING


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """A layer of a module.

    Attributes:
        name: Its kind within the module, such as `blocks`; layers of one name are equal.
        part: The part that trains or is frozen, such as `vision_projector`.
        kernels: In the order of the forward.
        parameters: Numbers that the tensor ranks divide.
        whole_parameters: Numbers that each tensor rank holds.
        kept: By choice of recomputation, `none`, `selective` and `full`.
        output: Numbers handed to the next layer or module.
        expert_parameters: Numbers that the expert ranks and the tensor ranks divide.
        frozen: Whether it trains only if it is named, and takes the batch alone, so that no gradient passes through it.
        by_position: Whether tensor ranks may divide the positions that it takes and gives (`UnitPlan.collectives`).
    """

    name: str
    part: str
    kernels: tuple[Kernel, ...]
    parameters: int
    whole_parameters: int
    kept: Mapping[str, Kept]
    output: Amount
    expert_parameters: int = 0
    frozen: bool = False
    by_position: bool = True

    @property
    def parameter_count(self) -> int:
        """Numbers in the layer's parameters, once."""
        return self.parameters + self.whole_parameters + self.expert_parameters

    def on_rank(self, tp: int) -> float:
        """Numbers in the parameters that one of `tp` tensor ranks holds of all but experts."""
        return self.parameters / tp + self.whole_parameters

    def experts_on_rank(self, tp: int, ep: int) -> float:
        """Numbers in the parameters of experts that each of `tp` tensor ranks of one of `ep` expert ranks holds."""
        return self.expert_parameters / (tp * ep)

    @property
    def flops(self) -> Amount:
        """Of one forward."""
        return sum((kernel.flops for kernel in self.kernels), start=NOTHING)


def matmul(name: str, inputs: int, outputs: int, per_token: Number = 1, *, split: bool = True) -> Kernel:
    """`[tokens * per_token, inputs] @ [inputs, outputs]`."""
    return Kernel(
        name,
        "matmul",
        Amount(2 * inputs * outputs * per_token),
        Amount((inputs + outputs) * per_token),
        inputs * outputs,
        split,
    )


def expert_matmul(name: str, inputs: int, outputs: int, per_token: Number, experts: int) -> Kernel:
    """`[tokens * per_token, inputs] @ [inputs, outputs]` with weights of `experts` experts; top-k rows a token."""
    one = matmul(name, inputs, outputs, per_token)
    return dataclasses.replace(one, weights=experts * one.weights, ranks="expert")


def memory(name: str, per_token: Number, *, split: bool = True) -> Kernel:
    """Norms, activations and the like: so many numbers read and written a token."""
    return Kernel(name, "memory", elements=Amount(per_token), split=split)


def gather(width: Number) -> Kernel:
    """Megatron's g: every rank gets the whole activation in front of a matmul split by columns (arXiv 2205.05198)."""
    return Kernel("gather", "all_gather", elements=Amount(width))


def scatter(width: Number) -> Kernel:
    """Its conjugate behind a matmul split by rows."""
    return Kernel("scatter", "reduce_scatter", elements=Amount(width))


def expert_gather(width: Number) -> Kernel:
    """In front of experts: every expert rank gets the tokens of all."""
    return Kernel("expert_gather", "all_gather", elements=Amount(width), split=False, ranks="expert")


def expert_scatter(width: Number) -> Kernel:
    """Its conjugate behind them: every instance gets the sums for its tokens."""
    return Kernel("expert_scatter", "reduce_scatter", elements=Amount(width), split=False, ranks="expert")


def same_kept(kept: Kept, inputs: Kept) -> dict[str, Kept]:
    """What a layer keeps that has nothing that `selective` would compute again."""
    return {"none": kept, "selective": kept, "full": inputs}
