"""OmniBal in other settings (arXiv 2407.20761, section 5): encoders, models, tiles, pretraining, data sets.

Each is simulated before balancing and after all three steps of it.
"""

import dataclasses
from collections.abc import Iterator

from benchmarks.omnibal.sample_rows import SampleSource
from benchmarks.omnibal.settings import LAYOUTS, Layout
from benchmarks.omnibal.steps import simulate_epochs
from benchmarks.papers.omnibal import (
    ASSUMED,
    CLUSTER,
    GPU_DAYS,
    OMNIBAL,
    PAPER,
    SHOWN,
    START,
    days_figure,
    gain_figure,
    source_of,
)
from benchmarks.papers.paper_rows import Figure, PaperRow, ReportProgress, Unit
from configs.workloads import Lognormal, SampleKind

OTHERS = "section 5, other settings"

EVA = {"1b": Layout(2, 4, 4), "4b": Layout(2, 4, 4), "8b": Layout(2, 4, 4), "18b": Layout(4, 4, 4)}
"""Layouts of EVA-CLIP with InternLM2-20B, by the encoder's size."""

LLAVA = {"7b": Layout(1, 4, 8), "13b": Layout(2, 4, 4), "34b": Layout(4, 4, 2)}
"""Layouts of LLaVA-1.6, which the text does not give: those of InternViT-6B with backbones of their size."""

TILES = {1: 4096.0, 4: 4096.0, 6: 5120.0, 12: 5120.0}
"""Q in tokens by the most tiles of an image."""

SIDES = (224, 336, 448)

CAPTIONED = SampleKind(
    text_tokens=Lognormal(30.0, 0.5, 4.0, 256.0),
    image_counts=(0.0, 1.0),
    image_side=Lognormal(336.0, 0.0),
    tile_side=448,
    max_tiles=1,
)
"""Pairs like the 558,000 of LCS-558K: an image as one tile, and a caption; its length is an assumption."""

PRETRAINED = {"ViT and MLP trained": ("projectors", "vision"), "MLP alone trained": ("projectors",)}


def rows(report_progress: ReportProgress) -> Iterator[PaperRow]:
    """All rows of other settings."""
    report_progress("simulating OmniBal's other settings")
    for size, ranks in EVA.items():
        source = source_of(f"eva_clip_{size}_internlm2_20b")
        source = dataclasses.replace(source, kind=dataclasses.replace(source.kind, tile_side=224))
        assumed = "inputs of 224 pixels, as EVA-CLIP was trained with"
        yield from setting_rows(f"EVA-CLIP-{size.upper()} + 20B", source, ranks, assumed)
    for size, ranks in LLAVA.items():
        source = source_of(f"llava_1_6_{size}", "llava_like")
        assumed = "samples as in configs/data/llava_like.gin; the layout is assumed"
        yield from setting_rows(f"LLaVA-1.6 {size.upper()}", source, ranks, assumed)
    shown, ranks = source_of(SHOWN), LAYOUTS[SHOWN]
    for tiles, tokens in TILES.items():
        kind = dataclasses.replace(shown.kind, max_tiles=tiles)
        source = dataclasses.replace(shown, kind=kind, row_tokens=tokens)
        yield from setting_rows(f"6B + 20B, at most {tiles} tiles", source, ranks, f"Q of {tokens:,.0f} tokens")
    for side in SIDES:
        source = dataclasses.replace(shown, kind=dataclasses.replace(shown.kind, tile_side=side))
        yield from setting_rows(f"6B + 20B, tiles of {side} pixels", source, ranks)
    for title, trainable in PRETRAINED.items():
        source = dataclasses.replace(shown, kind=CAPTIONED)
        assumed = "captions of 30 tokens (median), an image of one tile"
        yield from setting_rows(f"6B + 20B, pretraining, {title}", source, ranks, assumed, trainable=trainable)
    llava = dataclasses.replace(source_of(SHOWN, "llava_like"), model=shown.model)
    kind = dataclasses.replace(llava.kind, tile_side=448, max_tiles=1)
    assumed = "LLaVA-1.5's 665,000 samples as in configs/data/llava_like.gin, an image of one tile"
    yield from setting_rows("6B + 20B, LLaVA-1.5's data", dataclasses.replace(llava, kind=kind), ranks, assumed)


def setting_rows(
    title: str, source: SampleSource, ranks: Layout, *assumed: str, trainable: tuple[str, ...] = ("all",)
) -> Iterator[PaperRow]:
    """GPU-days of 1.2 million samples before and after balancing, and their ratio."""
    epochs = simulate_epochs(source, ranks, CLUSTER, trainable)

    def row(system: str, quantity: str, unit: Unit, figure: Figure) -> PaperRow:
        return PaperRow(
            paper=PAPER,
            place=OTHERS,
            row=title,
            system=system,
            quantity=quantity,
            unit=unit,
            at_layout=figure,
            assumptions=(*ASSUMED, *assumed),
        )

    yield row(START, GPU_DAYS, "GPU-days", days_figure(epochs.start))
    yield row(OMNIBAL, GPU_DAYS, "GPU-days", days_figure(epochs.memory))
    yield row(OMNIBAL, "times as few GPU-days", "times", gain_figure(epochs.memory, epochs.start))
