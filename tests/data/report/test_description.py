"""Description of a made-up data set whose figures can be computed by hand, on a terminal and as a page."""

import dataclasses
import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from data.data_config import DataConfig, RowCapacity
from data.packing.refusals import Refusal
from data.report.dataset_statistics import STATISTICS_COLUMNS, DatasetStatistics
from data.report.description import IMAGES_GROW_REMARK, KindCount, RefusalSummary, describe_dataset, length_distribution
from data.report.presentation import description_html, print_description

CAPACITY = RowCapacity(tokens=64, patches=32, images=0, samples=8)
CONFIG = DataConfig(rows=2, tokens=64, patches=32, images=0, samples=8)
WORK = {"tokens": 3.0, "patches": 1.0}
REFUSED = (
    Refusal("unreadable", "seen", "a.png", "truncated [bold]</script>"),
    Refusal("oversized", "seen", "sample 7", "90 tokens where a row holds 64; raise the row's capacity"),
    Refusal("unreadable", "seen", "b.png", "truncated"),
)


def made_up(pictures=32, texts=32, refused=REFUSED):
    """Pictures of 16 patches, 4 tokens of them and 12 of text, and texts of 16 tokens."""
    seen = dict.fromkeys(STATISTICS_COLUMNS, 0) | {
        "tokens": 16,
        "patches": 16,
        "text": 12,
        "vision": 4,
        "encoder_images": 1,
    }
    text = dict.fromkeys(STATISTICS_COLUMNS, 0) | {"tokens": 16, "text": 16}
    units = np.array([list(each.values()) for each in [seen, text] for _ in range(pictures)][: pictures + texts])
    counts = {"seen": 1000, "text": 50, "other": 3}
    return DatasetStatistics(units, {"seen": pictures, "text": texts}, counts, np.ones(len(units), bool), refused)


@pytest.fixture(scope="module")
def description():
    return describe_dataset(made_up(), CONFIG, CAPACITY, WORK, 3)


def test_kinds_refusals_and_units(description):
    assert description.samples == 64
    assert description.kinds == (
        KindCount("seen", 1000, 32, 0.5),
        KindCount("text", 50, 32, 0.5),
        KindCount("other", 3, 0, 0.0),
    )
    assert description.refused == (
        RefusalSummary("unreadable", "seen", 2, "a.png: truncated [bold]</script>"),
        RefusalSummary("oversized", "seen", 1, "sample 7: 90 tokens where a row holds 64; raise the row's capacity"),
    )
    assert description.token_shares == {"text": 0.875, "vision": 0.125}
    assert [each.name for each in description.distributions] == ["tokens", "text", "patches", "encoder_images"]
    assert {each.name: each.share for each in description.distributions}["patches"] == 0.5


def test_balancing_and_suggestions(description):
    isf = next(each for each in description.grouping_results if each.policy == "isf" and not each.padded)
    assert isf.rows > 0 and 0 <= isf.wasted_flops_share < 1
    assert description.published_isf.capacity == {"tokens": 16.0, "patches": 8.0}
    assert description.published_isf.oversized == 0.5
    assert [advice.capacity["tokens"] for advice in description.row_suggestions] == [64, 128, 256]
    assert description.gin[:2] == ("data_config.DataConfig:", "  tokens = 64")
    assert [each.padding for each in description.buckets["patches"]] == [0.0]


def test_terminal_output_fits_its_width(description):
    shown = io.StringIO()
    print_description(description, Console(file=shown, width=120, highlight=False))
    text = shown.getvalue()
    assert "text 87.5%, vision 12.5%" in text and "2 unreadable seen samples are refused, such as a.png" in text
    assert "truncated [bold]</script>" in text
    assert "As configured: 2 rows a step, a row of at most 64 tokens, 32 patches, 8 samples" in text
    assert text.endswith("\n".join(description.gin) + "\n") and "…" not in text


def test_the_page_is_self_contained_and_holds_the_description(description):
    page = description_html(description, "Data of <b>")
    assert not re.search(r"https?:|src=|url\(|@import|fetch\(", page)
    held = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1].replace("<\\/", "</"))
    assert held["title"] == "Data of <b>" and held["refused"][0]["example"].endswith("</script>")
    assert held["gin"] == list(description.gin) and len(held["grouping_results"]) == len(description.grouping_results)


def test_images_near_the_capacity_give_a_remark(description):
    assert description.remark == ""  # one of 16 patches is not shrunk to 32
    tight = describe_dataset(made_up(), CONFIG, dataclasses.replace(CAPACITY, patches=16), WORK, 3)
    assert tight.row_suggestions[-1].capacity["patches"] > 16 and tight.remark == IMAGES_GROW_REMARK
    shown = io.StringIO()
    print_description(tight, Console(file=shown, width=120))
    assert IMAGES_GROW_REMARK in shown.getvalue() and IMAGES_GROW_REMARK in description_html(tight, "")


def test_too_few_samples_for_a_step_give_no_suggestions():
    few = describe_dataset(made_up(1, 0, ()), CONFIG, CAPACITY, WORK, 3)
    assert few.row_suggestions == few.gin == () and {each.wasted_flops_share for each in few.grouping_results} == {None}
    shown = io.StringIO()
    print_description(few, Console(file=shown, width=120))
    assert "No sample is refused." in shown.getvalue() and "To paste" not in shown.getvalue()


def test_distributions_cover_samples_that_have_any_units():
    found = length_distribution("tokens", np.array([0, 2, 2, 4, 8]))
    assert (found.share, found.mean, found.minimum, found.maximum) == (0.8, 4.0, 2, 8)
    assert found.percentiles == {50: 3.0, 90: pytest.approx(6.8), 99: pytest.approx(7.88)}
    assert found.edges == (2, 3, 4, 5, 6, 7, 8, 9) and found.counts == (2, 0, 1, 0, 0, 0, 1)


@pytest.mark.parametrize("units", [np.arange(1, 1001), np.exp(np.linspace(0, 9, 500)).astype(int)])
def test_histograms_contain_every_sample_in_at_most_32_bars(units):
    found = length_distribution("tokens", units)
    assert sum(found.counts) == len(units) and len(found.counts) == len(found.edges) - 1 <= 32
    assert (np.diff(found.edges) > 0).all()
