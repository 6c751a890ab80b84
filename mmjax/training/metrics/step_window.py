"""The finished steps since the last report, and their means.

`TrainingRun.finish_step` adds steps, the training loop empties it; checkpoints hold it.
"""

from collections.abc import Mapping
from typing import Any

from data.packing.global_batch import GlobalBatch
from mmjax.training.metrics.step_report import TokenCounts, sum_counts


class StepWindow:
    """Sums over finished steps.

    A step's loss is the mean over the items that it scores: target tokens of the backbone, target images of a
    generator. The mean over steps is weighted by the number of these items, so it is the mean over all items of the
    window; steps without such items do not count.

    Checkpoints contain its state, so a run that resumes between two reports continues the window.
    """

    def __init__(self, backbone: str) -> None:
        """Creates an empty window.

        Args:
            backbone: Name of the backbone, whose loss is a mean over target tokens and not over all tokens.
        """
        self._backbone = backbone
        self.clear()

    def clear(self) -> None:
        """Starts the next window."""
        self._loss_sums: dict[str, float] = {}
        self._loss_items: dict[str, int] = {}
        self._gradient_norm_sum = 0.0
        self.counts: TokenCounts = {}
        self.steps = 0

    def get_state(self) -> dict[str, Any]:
        """Returns the sums as a small JSON value."""
        return {
            "loss_sums": dict(self._loss_sums),
            "loss_items": dict(self._loss_items),
            "gradient_norm_sum": self._gradient_norm_sum,
            "counts": {module: list(counts) for module, counts in self.counts.items()},
            "steps": self.steps,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues the window whose state is given."""
        self._loss_sums, self._loss_items = dict(state["loss_sums"]), dict(state["loss_items"])
        self._gradient_norm_sum = state["gradient_norm_sum"]
        self.counts = {module: (real, capacity) for module, (real, capacity) in state["counts"].items()}
        self.steps = state["steps"]

    def add(self, losses: Mapping[str, float], gradient_norm: float, batch: GlobalBatch) -> None:
        """Adds a finished step: its losses by name, the norm of its gradients, and its batch."""
        for name, loss in losses.items():
            items = self._item_count(name, batch)
            self._loss_sums[name] = self._loss_sums.get(name, 0.0) + (loss * items if items else 0.0)
            self._loss_items[name] = self._loss_items.get(name, 0) + items
        self._gradient_norm_sum += gradient_norm
        self.counts = sum_counts([self.counts, batch.real_and_capacity])
        self.steps += 1

    @property
    def losses(self) -> dict[str, float]:
        """Mean of every loss over the items of the window; 0 for a loss without items."""
        return {name: total / max(1, self._loss_items[name]) for name, total in self._loss_sums.items()}

    @property
    def gradient_norm(self) -> float:
        """Mean of the gradient norms of the steps."""
        return self._gradient_norm_sum / max(1, self.steps)

    def _item_count(self, loss: str, batch: GlobalBatch) -> int:
        """Number of items over which a step's loss is a mean; `module/...` are losses over all items of a module."""
        if loss == self._backbone:
            return batch.targets
        real, _ = batch.real_and_capacity[loss.partition("/")[0]]
        return real
