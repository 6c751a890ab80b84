"""Gemma 3 with images (arXiv 2503.19786): SigLIP's tower, averages of patches, and the decoder of the text models.

The tokens of an image attend to each other both ways.
"""

from configs.architectures import VisionConfig
from configs.modules.projectors import LinearProjectorConfig
from mmjax.weights.published.decoders.dense import gemma
from mmjax.weights.published.encoders.vision import siglip
from mmjax.weights.published.key_table import Fields, Key, Table
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.multimodal.projector_keys import PROJECTOR, PROJECTOR_ALIASES
from mmjax.weights.published.rules import Rule, norm_rules

DEFAULT_IMAGE_TOKENS = 256

PROJECTOR_RULES = (
    Rule(f"{PROJECTOR}.mm_input_projection_weight", "projector/linear/kernel"),
    *norm_rules(f"{PROJECTOR}.mm_soft_emb_norm", "projector/norm", bias=False),
)
"""Rules of the norm and the matmul behind the averages."""


def projector_keys(tower: VisionConfig) -> Table:
    """Entries of the averages and the projector."""

    def read_merge(tokens: int) -> int:
        side = round(tokens**0.5)
        if side**2 != tokens or tower.grid % side:
            raise ValueError(
                f"mm_tokens_per_image is {tokens} for {tower.grid} x {tower.grid} patches; give a square that divides "
                "them"
            )
        return tower.grid // side

    def write_merge(merge: int) -> int:
        return (tower.grid // merge) ** 2

    projector = LinearProjectorConfig(norm=True, norm_epsilon=tower.norm_epsilon, bias=False)
    return (
        Key("mm_tokens_per_image", "merge", DEFAULT_IMAGE_TOKENS, read_merge, write_merge),
        Fields({"projector": projector}),
    )


TOWER = PublishedEncoder(
    prefix="vision_tower.",
    architectures=by_model_type(*siglip.PUBLISHED),
    projector=lambda encoder: PROJECTOR_RULES,
    keys=projector_keys,
)
FORMAT = MultimodalFormat(
    encoders=(TOWER,),
    decoders=by_model_type(*gemma.PUBLISHED, only=("gemma3_text",)),
    keys=lambda backbone: (Fields({"bidirectional": "images"}),),
    tied_by_default=True,
    own_aliases=PROJECTOR_ALIASES,
)
PUBLISHED = (FORMAT.published("Gemma3ForConditionalGeneration", ("gemma3",)),)
