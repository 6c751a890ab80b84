"""OmniBal's layouts of InternVL-Chat models, and the figures and settings of its training (arXiv 2407.20761)."""

from typing import NamedTuple


class Layout(NamedTuple):
    """Ranks of a model's chain; all devices are one unit, as in the paper.

    Attributes:
        tp: Tensor ranks of the backbone. InternViT-6B has 25 heads, which they do not divide: the encoder has one.
        pp: Pipeline ranks.
        dp: Replicas of the backbone.
    """

    tp: int
    pp: int
    dp: int

    @property
    def devices(self) -> int:
        """Devices of all ranks."""
        return self.tp * self.pp * self.dp


LAYOUTS = {
    "internvit_6b_llama3_8b": Layout(1, 4, 8),
    "internvit_6b_internlm2_20b": Layout(2, 4, 4),
    "internvit_6b_yi_34b": Layout(4, 4, 2),
    "internvit_6b_llama3_70b": Layout(4, 8, 2),
    "internvit_6b_qwen1_5_110b": Layout(8, 8, 1),
}
"""Layouts (tp, pp, dp) of the paper's experiments, by model of configs/models."""


class GpuDays(NamedTuple):
    """GPU-days of an epoch on A100, before and after all three steps of balancing."""

    before: float
    after: float


PAPER_GPU_DAYS = {
    "internvit_6b_internlm2_20b": GpuDays(61.8, 21.3),
    "internvit_6b_yi_34b": GpuDays(75.4, 30.5),
}
"""GPU-days of the paper's introduction, by model."""

OVERALL_GOAL = 2.5
"""Times as few GPU-days after all three steps, for the models of `PAPER_GPU_DAYS`."""

SAMPLES = 1_200_000
"""Samples of an epoch (section 5.1)."""

GLOBAL_BATCH, PADDED_SAMPLES = 1024, 4
"""Samples of a step, and of a padded microbatch, as in InternVL-Chat-1.5's published script for fine-tuning."""
