"""Optimus's models, batches and layouts, and the figures that its text states (arXiv 2408.03505, section 5).

A sample has 2,048 backbone tokens and, for each encoder, one image of 2,048 patches: "in all experiments, we use
sequence length 2048" (appendix A). The paper says neither how many patches a sample has nor whether they become tokens
of the backbone. FEW_PATCHES is the other reading that its models allow: an image of 224 x 224 pixels in patches of 14.
"""

import dataclasses
from typing import NamedTuple

from sharding.simulation.idle.idle_time import IdleCause

SAMPLE_TOKENS = 2048
"""Backbone tokens of a sample, one segment."""

PATCHES, FEW_PATCHES = 2048, 256
"""Patches of a sample's only image, of each encoder."""

MICROBATCH = 2
"""Samples of a microbatch on a replica (tables 11 and 12, section D.3)."""


class MegatronRanks(NamedTuple):
    """A layout of tables 11 and 12.

    Attributes:
        dp: Replicas.
        pp: Pipeline ranks.
        tp: Tensor ranks.
        chunks: Virtual stages of a rank, V, of "Megatron-LM balanced"; the tables give "Megatron-LM" none.
    """

    dp: int
    pp: int
    tp: int
    chunks: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimusSetting:
    """A model with its batch and devices.

    Attributes:
        experiment: Name of the paper's experiment.
        model: Model of configs/models.
        devices: Number of devices.
        batch: Samples of the global batch.
        ranks: Layout of the baselines based on Megatron-LM; None where the text has none.
        cluster: Name of the devices (`configs.clusters`).
        patches: Patches of a sample, of each encoder.
    """

    experiment: str
    model: str
    devices: int
    batch: int
    ranks: MegatronRanks | None
    cluster: str = "h100"
    patches: int = PATCHES

    @property
    def title(self) -> str:
        """The setting in words, by which rows are named."""
        few = "" if self.patches == PATCHES else f", {self.patches} patches a sample"
        return f"{self.experiment}, {self.model}, {self.devices:,} devices{few}"


def _strong(devices: int, dp: int, patches: int = PATCHES) -> OptimusSetting:
    return OptimusSetting(
        experiment="strong scaling",
        model="vit_22b_gpt_175b",
        devices=devices,
        batch=1536,
        ranks=MegatronRanks(dp, 8, 8, 12),
        patches=patches,
    )


def _weak(model: str, devices: int, batch: int, ranks: MegatronRanks) -> OptimusSetting:
    return OptimusSetting(experiment="weak scaling", model=model, devices=devices, batch=batch, ranks=ranks)


def _two_encoders(model: str) -> OptimusSetting:
    ranks = MegatronRanks(8, 8, 8, 12)  # the paper has no balanced baseline here, so V is model D's
    return OptimusSetting(experiment="two encoders", model=model, devices=512, batch=256, ranks=ranks)


WEAK_SCALING = (
    _weak("vit_11b_llama_70b", 64, 32, MegatronRanks(2, 4, 8, 6)),
    _weak("vit_22b_llama_70b", 128, 64, MegatronRanks(4, 4, 8, 6)),
    _weak("vit_11b_gpt_175b", 256, 128, MegatronRanks(4, 8, 8, 12)),
    _weak("vit_22b_gpt_175b", 512, 256, MegatronRanks(8, 8, 8, 12)),
)
"""Models A to D (tables 3 and 11)."""

STRONG_SCALING = (_strong(1536, 24), _strong(2048, 32), _strong(3072, 48))
"""Model D (table 12): 32, 24 and 16 microbatches."""

FEW_PATCHES_SCALING = (_strong(1536, 24, FEW_PATCHES), _strong(2048, 32, FEW_PATCHES), _strong(3072, 48, FEW_PATCHES))
"""Strong scaling with few patches."""

TWO_ENCODERS = tuple(
    map(_two_encoders, ("vit_11b_vit_5b_gpt_175b", "vit_22b_vit_5b_gpt_175b", "vit_22b_vit_11b_gpt_175b"))
)
"""DualEnc (table 6, section D.3)."""

SMALL = OptimusSetting(experiment="small", model="vit_3b_gpt_11b", devices=8, batch=16, ranks=None, cluster="a100")
"""The comparison with Alpa and FSDP (section 5.2.2; its setup is in appendix C)."""

SETTINGS = (*WEAK_SCALING, *STRONG_SCALING, *FEW_PATCHES_SCALING, *TWO_ENCODERS, SMALL)

LARGEST = 3072
"""Devices of the largest setting."""

PAPER_OVER_MEGATRON = 1.205
"""The least of "20.5%-21.3% with ViT-22B and GPT-175B over 3072 GPUs compared to baselines" (abstract), on LARGEST."""

PAPER_MEAN_OVER_BASELINES = 1.203
"""Mean throughput of Optimus over the baselines (introduction)."""

PAPER_OVER_ALPA, PAPER_OVER_FSDP = 3.09, 1.151
"""Throughput of Optimus over Alpa and over FSDP on the small model (section 5.2.2)."""

PAPER_BUBBLES: dict[IdleCause, float] = {
    "gather": 0.033,
    "reduce": 0.089,
    "warm-up": 0.050,
    "cool-down": 0.092,
    "dependency": 0.087,
    "tensor parallel": 0.112,
}
"""Shares of a step by `sharding.simulation.idle_time.IDLE_CAUSES` (table 1; `dependency` has its "other" PP bubbles).

They were measured with Megatron-LM on a ViT and a GPT of more than 100B on more than 3,000 GPUs, in a step of 5.12 s
whose batch and layout the paper does not give.
"""

PAPER_SCHEDULER_SECONDS = 322.0
"""Seconds of the bubble scheduler at 1,536 devices, on one core (section 5.3)."""

PAPER_FINE_SHARE = 0.58
"""Share of the encoders' work in bubbles at 32 microbatches, about (section 5.3.2)."""

PAPER_MOST_MEMORY_OVERHEAD = 0.12
"""The most by which colocation raises the memory in use (sections 4.5 and 5.3.1)."""

PAPER_SECONDS = {"Megatron-LM": (10.64, 10.75), "Megatron-LM balanced": (10.31, 10.50), "colocated": (8.49, 9.82)}
"""Steps on 1,536 H100s by system, from the least to the most. They are known to this project only by rounded ratios of
the steps that were simulated on 25 November 2026 to the paper's: 10.16 s is 0.95 of it, 5.41 s 0.52, 4.37 s 0.45 to
0.51."""

PAPER_OVER_BALANCED = {1536: (1.06, 1.06), 2048: (1.11, 1.11), 3072: (1.205, 1.213)}
"""Throughput of Optimus over "Megatron-LM balanced" by devices; the last by the abstract."""
