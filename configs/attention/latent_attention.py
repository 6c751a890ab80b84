"""Attention whose keys and values are expanded from one narrow latent vector per position.

It is an option of the backbone (`BackboneConfig.latent_attention`).
"""

import dataclasses

from configs.common.checks import require_positive, require_types
from configs.common.short_repr import short_repr


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentAttentionConfig:
    """Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Every head has keys and values of its own. The first `nope_width` channels of its queries and keys are not rotated;
    the other `rope_width` channels are, and of a key these are the same for all heads.

    Attributes:
        query_rank: Width of the latent vector that queries are expanded from; 0 for queries straight from the input.
        kv_rank: Width c of the latent vector that keys and values are expanded from.
        nope_width: Channels of a head's queries and keys that are not rotated.
        rope_width: Channels of a head's queries and keys that are rotated.
        value_width: Channels u of a head's values.
        norm_epsilon: Added to the mean square by the norms of the latent vectors.
    """

    query_rank: int = 0
    kv_rank: int = 512
    nope_width: int = 128
    rope_width: int = 64
    value_width: int = 128
    norm_epsilon: float = 1e-6

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "kv_rank", "nope_width", "rope_width", "value_width")
        if self.query_rank < 0:
            raise ValueError(f"LatentAttentionConfig.query_rank is {self.query_rank}; it must be at least 0")
        if self.rope_width % 2:
            raise ValueError(f"LatentAttentionConfig.rope_width is {self.rope_width}; rotary positions need pairs")

    @property
    def head_width(self) -> int:
        """Width e of a head's queries and keys."""
        return self.nope_width + self.rope_width
