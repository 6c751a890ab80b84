"""The layouts that a chain of modules can have on so many devices, before its layers are divided among stages.

`ChainProblem` enumerates the layouts for the policy `balanced`.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from sharding.planners.stages.chain_layout import ChainLayout
from sharding.plans.parallelism import CollectivesName

ROW_MULTIPLES = (1, 2, 4)
"""Rows of a microbatch, in the fewest that the replicas of all modules can divide among them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChainSizes:
    """The sizes that the layouts of a chain are enumerated from.

    Attributes:
        modules: The modules in chain order.
        tensor_sizes: Tensor-parallel sizes of each module together: one for each size of the backbone.
        collectives: The collectives of the tensor ranks around split matmuls, for each of `tensor_sizes`.
        layers: Layers that can be on different stages.
        rows: Rows of the global batch.
        cp: Context-parallel ranks of all modules.
        ep: Expert ranks.
        most_chunks: The most virtual stages of a pipeline rank.
    """

    modules: tuple[str, ...]
    tensor_sizes: tuple[tuple[int, ...], ...]
    collectives: Mapping[tuple[int, ...], CollectivesName]
    layers: int
    rows: int
    cp: int = 1
    ep: int = 1
    most_chunks: int = 1

    def layouts(self, devices: int) -> Iterator[ChainLayout]:
        """Layouts without chunks: as many replicas as fit the devices and divide the rows, for each tp, pp and rows."""
        for sizes in self.tensor_sizes:
            tp = max(sizes)
            for pp in range(1, min(self.layers, devices // (tp * self.cp)) + 1):
                for multiple in ROW_MULTIPLES:
                    dp = self._most_replicas(devices // (tp * self.cp * pp), _rows_of_each(sizes) * multiple)
                    if dp:
                        yield self._layout(sizes, pp, dp, multiple)

    def layouts_by_devices(self) -> Iterator[ChainLayout]:
        """Layouts without chunks, with the fewest rows in a microbatch, by the number of their devices."""
        layouts = []
        for sizes in self.tensor_sizes:
            for dp in range(self.ep, self.rows + 1, self.ep):
                if self.rows % (dp * _rows_of_each(sizes)) == 0:
                    layouts += [self._layout(sizes, pp, dp, 1) for pp in range(1, self.layers + 1)]
        yield from sorted(layouts, key=lambda layout: layout.stage_devices * layout.pp)

    def _most_replicas(self, most: int, rows_of_each: int) -> int:
        """The most replicas of the backbone, at most `most`, of which each takes so many rows; 0 for none."""
        groups = self.rows // rows_of_each if self.rows % rows_of_each == 0 else 0
        return next((dp for dp in range(min(most, groups), 0, -1) if groups % dp == 0 and dp % self.ep == 0), 0)

    def _layout(self, sizes: tuple[int, ...], pp: int, dp: int, multiple: int) -> ChainLayout:
        tp = max(sizes)
        return ChainLayout(
            modules=self.modules,
            pp=pp,
            dp=dp,
            tp=tp,
            module_tp=sizes if min(sizes) < tp else (),
            cp=self.cp,
            ep=self.ep,
            collectives=self.collectives[sizes],
            microbatches=self.rows // (dp * _rows_of_each(sizes) * multiple),
        )

    def chunks_of(self, layout: ChainLayout) -> int:
        """The most virtual stages that a rank of a layout can have: 1 where pp does not divide the microbatches."""
        if layout.pp == 1 or layout.microbatches % layout.pp:
            return 1
        return max(1, min(self.most_chunks, self.layers // layout.pp))


def _rows_of_each(sizes: tuple[int, ...]) -> int:
    """Rows for each replica of the backbone, so that the replicas of every module can divide a microbatch."""
    return math.lcm(*(max(sizes) // size for size in sizes))


def largest_dividing(sizes: tuple[int, ...], tp: int) -> int | None:
    """The largest of a module's tensor-parallel sizes that divides `tp`; None without one."""
    return max((size for size in sizes if math.gcd(size, tp) == size), default=None)
