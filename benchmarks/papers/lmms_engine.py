"""lmms-engine's published MFU of Qwen3-VL-8B, by its counting, for the mixtures of samples that are assumed."""

from collections.abc import Iterator

from benchmarks.papers.paper_rows import Band, PaperRow
from benchmarks.papers.ranges import rate_figure
from benchmarks.validation.runs import lmms_engine
from benchmarks.validation.settings.published_band import PublishedBand
from benchmarks.validation.settings.setting import simulated_step


def rows() -> Iterator[PaperRow]:
    """Both bands of Qwen3-VL-8B."""
    return (band_row(band) for band in lmms_engine.bands() if "Qwen3-VL 8B" in band.name)


def band_row(band: PublishedBand) -> PaperRow:
    """A published band, and the MFU of all mixtures of samples that fit it."""
    shares = [assumed.mfu() for assumed in band.assumed]
    step = simulated_step(band.assumed[0].setting)
    return PaperRow(
        paper="lmms_engine",
        place="table of MFU",
        row=band.name.removeprefix("lmms-engine, "),
        system="lmms-engine",
        quantity="MFU",
        unit="share",
        published=Band(band.least, band.most),
        at_layout=rate_figure(Band(min(shares), max(shares)), step, ("fully_sharded", "vision_language")),
        assumptions=tuple(assumed.assumption for assumed in band.assumed),
    )
