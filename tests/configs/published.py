"""Parameters that authors publish, with their sources: of each part in `configs/models/parts`, and of whole models."""

import dataclasses

TOLERANCE = 0.03


@dataclasses.dataclass(frozen=True)
class Published:
    """A published number of parameters.

    Attributes:
        parameters: In billions.
        source: Where it is published.
        deviation: How far ours is from it, as a share of it, where that is more than the tolerance.
        reason: Why.
    """

    parameters: float
    source: str
    deviation: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.deviation is None) != (not self.reason):
            raise ValueError(f"{self.source}: a deviation needs a reason, and a reason a deviation")


PARTS = {
    "vit_huge": Published(0.632, "arXiv 2010.11929, table 1"),
    "internvit_6b": Published(5.54, "model card of InternViT-6B-448px-V1-5"),
    "eva_clip_1b": Published(1.011, "arXiv 2211.07636 (EVA's ViT-g)"),
    "eva_clip_4b": Published(4.4, "arXiv 2303.15389 (EVA-02-CLIP-E/14, image tower)"),
    "eva_clip_8b": Published(7.5, "arXiv 2402.04252 (image tower)"),
    "eva_clip_18b": Published(17.5, "arXiv 2402.04252 (image tower)"),
    "clip_vit_l_336": Published(
        0.3035,
        "weights of clip-vit-large-patch14-336 (image tower)",
        -0.041,
        "LLaVA leaves the last of 24 blocks out, which holds 12.6 M",
    ),
    "siglip_so400m_384": Published(
        0.4282, "weights of siglip-so400m-patch14-384 (image tower)", -0.036, "the head that pools holds 15.2 M"
    ),
    "vit_3b": Published(3.0, "Optimus, table 8"),
    "vit_5b": Published(5.5, "Optimus, table 8"),
    "vit_11b": Published(
        10.0,
        "Optimus, table 8",
        -0.033,
        "the table's width and depth give 9.7 B; the paper rounds up, to 10 B there and to 11 B in its name elsewhere",
    ),
    "vit_22b": Published(21.7, "arXiv 2302.05442, table 1; 22 B in Optimus, table 8"),
    "orch_vit_2b": Published(
        2.0, "OrchMLLM, table 1", -0.093, "36 blocks of width 2,048 hold 1.81 B; the table gives whole billions"
    ),
    "orch_vit_3b": Published(
        3.0, "OrchMLLM, table 1", -0.077, "40 blocks of width 2,400 hold 2.77 B; the table gives whole billions"
    ),
    "whisper_large": Published(0.64, "arXiv 2311.07919 (Qwen-Audio's encoder, from Whisper large)"),
    "orch_whisper_6b": Published(
        6.0, "OrchMLLM, table 1", -0.089, "48 blocks of width 3,072 hold 5.44 B; the table gives whole billions"
    ),
    "llama2_7b": Published(6.738, "weights of Llama-2-7b"),
    "llama2_13b": Published(13.016, "weights of Llama-2-13b"),
    "llama2_70b": Published(68.977, "weights of Llama-2-70b; 70 B in Optimus, table 9"),
    "llama3_8b": Published(8.03, "weights of Meta-Llama-3-8B"),
    "llama3_70b": Published(70.554, "weights of Meta-Llama-3-70B"),
    "internlm2_20b": Published(19.861, "weights of internlm2-20b"),
    "yi_34b": Published(34.389, "weights of Yi-34B"),
    "qwen1_5_110b": Published(111.2, "weights of Qwen1.5-110B"),
    "qwen2_7b": Published(7.616, "weights of Qwen2-7B"),
    "qwen2_14b": Published(14.77, "weights of Qwen2.5-14B, which has OrchMLLM's shape"),
    "qwen2_72b": Published(72.706, "weights of Qwen2-72B"),
    "gpt_11b": Published(
        11.0, "Optimus, table 9", -0.162, "80 blocks of width 3,072 hold 9.06 B, and the embedding 0.16 B"
    ),
    "gpt_175b": Published(175.0, "arXiv 2005.14165, table 2.1; Optimus, table 9"),
    "stable_diffusion_2_1": Published(0.8659, "weights of stable-diffusion-2-1 (U-Net)"),
    "audioldm_s": Published(0.181, "arXiv 2301.12503 (U-Net)"),
    "flux_1_dev": Published(11.901, "weights of FLUX.1-dev (transformer)"),
    "stable_diffusion_3": Published(2.028, "weights of stable-diffusion-3-medium-diffusers (transformer)"),
    "qwen3_vl_vision": Published(0.416, "weights of Qwen3-VL-8B-Instruct (vision tower without mergers)"),
    "gemma3_vision": Published(0.417, "weights of gemma-3-27b-it (vision tower)"),
    "internvit_300m": Published(0.304, "model card of InternViT-300M-448px-V2_5"),
    "qwen2_5_omni_vision": Published(0.632, "weights of Qwen2.5-Omni-7B (vision tower without merger)"),
    "qwen2_5_omni_audio": Published(0.635, "weights of Qwen2.5-Omni-7B (audio tower without projection)"),
    "qwen3_vl_8b_text": Published(8.19, "weights of Qwen3-VL-8B-Instruct (language model)"),
    "qwen3_vl_30b_a3b_text": Published(30.532, "weights of Qwen3-VL-30B-A3B-Instruct (language model)"),
    "gemma3_27b_text": Published(27.009, "weights of gemma-3-27b-it (language model)"),
    "qwen3_8b": Published(8.19, "weights of Qwen3-8B"),
    "qwen2_5_omni_7b_text": Published(7.616, "weights of Qwen2.5-7B, which has this shape"),
}

MODELS = {
    "mllm_9b": Published(
        9.0,
        "DistTrain, by its name",
        -0.072,
        "the backbone called 7B has 6.74 B, and what is called 1 B of Stable Diffusion has 0.95 B",
    ),
    "mllm_15b": Published(15.0, "DistTrain, by its name"),
    "mllm_72b": Published(72.0, "DistTrain, by its name"),
    "mllm_10b": Published(10.0, "OrchMLLM, by its name"),
    "mllm_18b": Published(18.0, "OrchMLLM, by its name"),
    "mllm_84b": Published(84.0, "OrchMLLM, by its name"),
    "internvit_6b_internlm2_20b": Published(25.5, "model card of InternVL-Chat-V1-5"),
    "internvit_6b_yi_34b": Published(40.0, "model card of InternVL-Chat-V1-2-Plus, of the same parts"),
    "llava_1_6_7b": Published(7.06, "weights of llava-v1.6-vicuna-7b"),
    "llava_1_6_13b": Published(13.4, "weights of llava-v1.6-vicuna-13b"),
    "llava_1_6_34b": Published(34.8, "weights of llava-v1.6-34b"),
    "qwen3_vl_8b": Published(8.767, "weights of Qwen3-VL-8B-Instruct"),
    "qwen3_vl_30b_a3b": Published(31.071, "weights of Qwen3-VL-30B-A3B-Instruct"),
    "gemma3_27b": Published(27.432, "weights of gemma-3-27b-it"),
    "internvl3_5_8b": Published(8.528, "weights of InternVL3_5-8B"),
}
