"""The names of the mesh axes that a module is given; no module writes an axis name of its own.

`stage_axes` of `sharding/plans/resolved/stage_axes.py` makes the axes of each module of a unit, and models read them.
"""

import dataclasses
from typing import Literal

from sharding.expert_transfer import ExpertTransferChoice

CollectiveMatmul = Literal["reference", "ring", "mosaic"]

ContextTransfer = Literal["ring", "all_to_all"]
"""How attention reaches the positions of other context-parallel ranks: keys and values are sent around them (ring
attention, arXiv 2310.01889), or ranks trade positions for heads (DeepSpeed-Ulysses, arXiv 2309.14509)."""


@dataclasses.dataclass(frozen=True)
class Axes:
    """Mesh axes by purpose; each is a tuple, since one purpose may be factored over several mesh axes.

    Attributes:
        data: Axes over which rows are split and gradients are summed.
        tensor: Axes over which heads, feed-forward widths and the vocabulary are split.
        expert: Axes over which experts are split.
        expert_nodes: Nodes on which the ranks along them are, evenly.
        expert_transfer: How tokens get to these ranks.
        fsdp: Axes of `data` over which weights are divided until a layer computes, and gradients from then on (fully
            sharded data parallelism, arXiv 1910.02054, stage 3); none where each replica holds all weights. They
            include the axes of `expert`.
        context: Axes over which the positions of a row are divided in all layers of a stack (context parallelism).
        context_transfer: How attention reaches the positions of other ranks along them.
        sequence: Axes over which the positions of a row are divided between split matmuls: none, or all of `tensor`.
            They divide what the ranks of `context` have.
        collective_matmul: Implementation of the collectives around split matmuls (`pallas_kernels.collective_matmul`).
        pipeline: Axes over which the layers of a stack are divided where one program runs a whole pipeline; else none.
    """

    data: tuple[str, ...] = ()
    tensor: tuple[str, ...] = ()
    expert: tuple[str, ...] = ()
    expert_nodes: int = 1
    expert_transfer: ExpertTransferChoice = "auto"
    fsdp: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    context_transfer: ContextTransfer = "ring"
    sequence: tuple[str, ...] = ()
    collective_matmul: CollectiveMatmul = "reference"
    pipeline: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for purpose in ("data", "tensor", "expert", "fsdp", "context", "sequence", "pipeline"):
            if isinstance(getattr(self, purpose), str):
                raise TypeError(f"Axes.{purpose} is the string {getattr(self, purpose)!r}; give a tuple of axis names")
        # An axis may serve data and expert at once, but rows and widths never share one.
        shared = set(self.tensor) & (set(self.data) | set(self.expert))
        if shared:
            raise ValueError(f"Axes.tensor shares {', '.join(sorted(shared))} with data or expert; use another axis")
        if set(self.context) & (set(self.data) | set(self.tensor)):
            raise ValueError(f"Axes.context is {self.context}, of data or tensor; use another axis")
        if not set(self.fsdp) <= set(self.data):
            raise ValueError(f"Axes.fsdp is {self.fsdp}; give axes of data, {self.data}")
        if self.sequence not in ((), self.tensor):
            raise ValueError(f"Axes.sequence is {self.sequence}; give none, or the axes of tensor, {self.tensor}")

    @property
    def replicas(self) -> tuple[str, ...]:
        """Axes over which gradients and losses are summed: each rank along them has rows or positions of its own."""
        return (*self.data, *self.context)

    @property
    def around_stack(self) -> "Axes":
        """The same axes for layers before and behind a stack: pipeline ranks divide their vocabulary too.

        They are more tensor ranks there (vocabulary parallelism over pipeline ranks, arXiv 2411.05288), none of which
        divide positions.
        """
        if not self.pipeline:
            return self
        return dataclasses.replace(self, tensor=(*self.pipeline, *self.tensor), sequence=(), pipeline=())

    @property
    def without_sequence(self) -> "Axes":
        """The same axes for a layer that takes all positions of its context-parallel rank."""
        return dataclasses.replace(self, sequence=())

    @property
    def of_whole_rows(self) -> "Axes":
        """The same axes for a layer that takes all positions of a row."""
        return dataclasses.replace(self, sequence=(), context=())
