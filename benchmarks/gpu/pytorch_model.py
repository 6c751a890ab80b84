"""The model of `benchmarks.gpu` in PyTorch: transformers' CLIP tower and Qwen2, joined by LLaVA's projector.

Both are read from the weights that mmjax exported. Each block is compiled by itself (PyTorch's "regional compilation"):
all layers share their code, so compiling takes seconds and not minutes. The loss with its logits is compiled too.
"""

import dataclasses
import pathlib
from typing import Any

import torch
import transformers

VARLEN = "varlen"
"""Name under which transformers knows PyTorch's own flash attention over segments of any length."""


@dataclasses.dataclass(frozen=True)
class PyTorchVariant:
    """Says how samples become rows and how the backbone attends.

    Attributes:
        name: The name that is printed.
        packed: Whether rows are packed. Otherwise each sample is a row, padded to the longest of its microbatch.
        attention: The name of the attention in transformers.
    """

    name: str
    packed: bool
    attention: str


PYTORCH_VARIANTS = (
    PyTorchVariant("padded, SDPA", False, "sdpa"),
    PyTorchVariant("packed, varlen_attn (flash)", True, VARLEN),
    PyTorchVariant("packed, flex_attention", True, "flex_attention"),
    PyTorchVariant("packed, SDPA with a mask", True, "sdpa"),
)
PYTORCH_CPU_VARIANTS = ("padded, SDPA", "packed, SDPA with a mask")
"""Names of the variants that also train on a CPU."""


class PyTorchLlava(torch.nn.Module):
    """Pictures through the tower and the projector into the places of their tokens, then the backbone and the loss."""

    def __init__(self, folder: pathlib.Path, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        whole = transformers.LlavaForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa"
        ).to(device)
        inner = whole.model
        self.tower, self.projector, self.language = (
            inner.vision_tower,
            inner.multi_modal_projector,
            inner.language_model,
        )
        self.head = whole.lm_head
        self.device = torch.device(device)
        self._loss = _loss

    def compile_blocks(self) -> None:
        """Compiles the blocks and the loss, once for every variant and shape. Beyond its limit PyTorch runs eagerly."""
        torch._dynamo.config.recompile_limit = 64
        for module in self.modules():
            if type(module).__name__.endswith(("EncoderLayer", "DecoderLayer")):
                module.compile()
        self._loss = torch.compile(_loss)

    def attend(self, attention: str) -> None:
        """Chooses the backbone's attention."""
        self.language.set_attn_implementation(attention)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """The sum of the losses of a microbatch's target tokens."""
        x = self.language.embed_tokens(batch["tokens"])
        if len(batch["pictures"]):
            patches = self.tower(batch["pictures"].to(x.dtype)).last_hidden_state[:, 1:]
            embeddings = self.projector(patches).flatten(0, 1)
            x = x.flatten(0, 1).index_copy(0, batch["places"], embeddings).view(x.shape)
        hidden = self.language(inputs_embeds=x, use_cache=False, **batch["who_sees_whom"]).last_hidden_state
        return self._loss(hidden.flatten(0, 1), self.head.weight, batch["targets"].flatten())


def _loss(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = torch.nn.functional.linear(hidden, head).float()
    return torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")


def register_varlen() -> None:
    """Makes `VARLEN` known to transformers: the rows of a microbatch are joined and cut into segments.

    Raises:
        ImportError: This PyTorch has no `varlen_attn`.
    """
    from torch.nn.attention.varlen import varlen_attn

    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: None,
        scaling: float,
        cu_seq_lens_q: torch.Tensor,
        max_length_q: int,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        rows, _, positions, _ = query.shape
        query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
        output = varlen_attn(
            query,
            key,
            value,
            cu_seq_lens_q,
            cu_seq_lens_q,
            max_length_q,
            max_length_q,
            scale=scaling,
            window_size=(-1, 0),
            enable_gqa=True,
        )
        return output.view(rows, positions, *output.shape[1:]), None

    transformers.AttentionInterface.register(VARLEN, attend)
