"""Token layout: the token columns of a sample with a trunk and branches, as a pure function of token ids.

Data sets lay out token ids with `lay_out_tokens`; packed rows have the same columns.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from configs.common.short_repr import short_repr
from data.errors import DataError
from data.text.word_tokenizer import PAD

TOKEN_COLUMNS = ("tokens", "branches", "positions", "targets", "target_mask", "blocks")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TokenLayout:
    """Columns over the tokens of a sample: int32[t], or int32[n, s] for packed rows.

    Attributes:
        tokens: Token ids.
        branches: 0 for the trunk, b > 0 for branch b, which attends to the trunk and to itself.
        positions: Position in the sample; every branch continues from the end of the trunk. In a decoded sample the
            backbone may want (time, row, column) instead, along a last dimension (`data.samples.token_format`).
        targets: The next token of the same branch, `PAD` at its end.
        target_mask: 1 where predicting the target counts in the loss, else 0.
        blocks: Tokens of a sample with one number above 0 attend to each other both ways; 0 for causal attention.
        encoder_indices: By encoder field, for every token -1 or the index of the encoder output that replaces its
            embedding, or `configs.modules.backbone.NEWLINE`. In sample metadata the index counts outputs of images and
            clips; in a decoded sample it counts all cells, including the cells of class tokens.
    """

    tokens: np.ndarray
    branches: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    target_mask: np.ndarray
    blocks: np.ndarray
    encoder_indices: Mapping[str, np.ndarray]

    __repr__ = short_repr


def lay_out_tokens(
    trunk: Sequence[int],
    branches: Iterable[Sequence[int]],
    loss_positions: Sequence[Iterable[int]],
    placeholders: Mapping[str, int | Sequence[int]],
    outputs: Mapping[str, Sequence[int]] | None = None,
) -> TokenLayout:
    """Lays out a trunk and the branches that follow it.

    Args:
        trunk: Token ids; each placeholder takes an output of its encoder.
        branches: Token ids of each branch.
        loss_positions: For the trunk and then every branch, the positions within it whose *token is a target*.
        placeholders: By encoder field, the token id or ids that stand for an encoder output.
        outputs: By encoder field, the output that each placeholder takes; all in order where it is left out.

    Raises:
        DataError: The first token of the trunk or of a branch is a target: no token predicts it.
    """
    segments = [trunk, *branches]
    lengths = [len(segment) for segment in segments]
    tokens = np.fromiter((token for segment in segments for token in segment), np.int32, sum(lengths))  # [t]
    starts = np.cumsum([0, *lengths[:-1]])
    branch = np.repeat(np.arange(len(segments), dtype=np.int32), lengths)
    positions = np.arange(len(tokens)) - np.repeat(starts, lengths) + np.where(branch > 0, len(trunk), 0)
    targets = np.full(len(tokens), PAD, np.int32)
    target_mask = np.zeros(len(tokens), np.int32)
    same_branch = branch[1:] == branch[:-1]
    targets[:-1][same_branch] = tokens[1:][same_branch]
    for start, target_positions in zip(starts, loss_positions, strict=True):
        target_positions = np.fromiter(target_positions, np.int64)
        if (target_positions == 0).any():
            raise DataError("the first token of a trunk or branch cannot be a target: no token precedes it")
        target_mask[start - 1 + target_positions] = 1
    encoder_indices = {}
    for field, placeholder in placeholders.items():
        is_placeholder = np.isin(tokens, placeholder)
        indices = np.full(len(tokens), -1, np.int32)
        indices[is_placeholder] = np.arange(is_placeholder.sum()) if outputs is None else outputs[field]
        encoder_indices[field] = indices
    return TokenLayout(
        tokens=tokens,
        branches=branch,
        positions=positions.astype(np.int32),
        targets=targets,
        target_mask=target_mask,
        blocks=np.zeros(len(tokens), np.int32),
        encoder_indices=encoder_indices,
    )
