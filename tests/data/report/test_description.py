"""Description of a made-up data set whose figures can be computed by hand, on a terminal and as a page."""

import dataclasses
import html
import io
import json

import numpy as np
import pytest
from rich.console import Console

from data.data_config import DataConfig, RowCapacity
from data.packing.grouping.groups import Groups
from data.packing.rows.refusals import Refusal
from data.report.console import print_description
from data.report.dataset_statistics import DatasetStatistics
from data.report.description import IMAGES_GROW_REMARK, KindCount, RefusalSummary, describe_dataset
from data.report.html_page import html_page
from data.report.json_document import description_json
from data.report.phase_advice import suggest_phase_capacities
from data.report.plain_words import counted, in_words

CAPACITY = RowCapacity(tokens=64, lengths={"patches": 32}, images=0, samples=8)
CONFIG = DataConfig(rows=2, tokens=64, patches=32, images=0, samples=8)
WORK = {"tokens": 3.0, "patches": 1.0}
WEIGHTS = {"patches": 0.25}
MODULES = {"tokens": "backbone", "patches": "vision", "images": "generator"}
REFUSED = (
    Refusal("unreadable", "seen", "a.png", "truncated [bold]</script>"),
    Refusal("oversized", "seen", "sample 7", "90 tokens where a row holds 64; raise the row's capacity"),
    Refusal("unreadable", "seen", "b.png", "truncated"),
)


def made_up(pictures=32, texts=32, refused=REFUSED, untaught=False):
    """Pictures of 16 patches, 4 tokens of them and 12 of text, and texts of 16 tokens."""
    seen = {"tokens": 16, "patches": 16, "images": 0, "text": 12, "vision": 4, "generation": 0, "encoder_images": 1}
    seen["targets"] = 3
    text = dict.fromkeys(seen, 0) | {"tokens": 16, "text": 16, "targets": 0 if untaught else 1}
    return DatasetStatistics(
        sample_ids=np.arange(pictures + texts),
        units={name: np.array([seen[name]] * pictures + [text[name]] * texts) for name in seen},
        items={"patches": ((16,),) * pictures + ((),) * texts, "images": ((),) * (pictures + texts)},
        token_modalities=("text", "vision", "generation"),
        distributed=("tokens", "text", "patches", "images", "encoder_images"),
        kinds={"seen": pictures, "text": texts},
        counts={"seen": 1000, "text": 50, "other": 3},
        fits=np.ones(pictures + texts, bool),
        refused=refused,
    )


def described(statistics, capacity=CAPACITY):
    return describe_dataset(statistics, CONFIG, capacity, WORK, MODULES, WEIGHTS, 3)


@pytest.fixture(scope="module")
def description():
    return described(made_up())


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
    names = [distribution.name for distribution in description.distributions]
    assert names == ["tokens", "text", "patches", "encoder_images"]
    assert {distribution.name: distribution.share for distribution in description.distributions}["patches"] == 0.5


def test_capacities_of_rows_of_its_own_hold_every_microbatch(description):
    suggested = description.phase_capacities["patches"]
    assert description.phase_capacities.keys() == {"patches"} and suggested.rows == CONFIG.rows
    assert all(capacity % 16 == 0 for capacities in suggested.capacities for capacity in capacities)
    assert list(suggested.padding) == sorted(suggested.padding, reverse=True) and 0 <= suggested.without_items < 1
    alone = describe_dataset(made_up(), CONFIG, CAPACITY, WORK, MODULES, WEIGHTS, 3, microbatch_rows=1)
    one = alone.phase_capacities["patches"]
    assert one.rows == 1 and one.capacities[0] == (32,)  # what a row holds
    shown = io.StringIO()
    print_description(description, Console(file=shown, width=120))
    assert "Capacities of rows of its own, 2" in shown.getvalue()
    assert suggested.quadratic_cost_weight == 0.25 and not any(suggested.cost_saved)  # all items are alike


def test_what_a_square_weight_saves_of_the_costliest_rows():
    # With w = 1, 8 costs 72, 4 costs 20 and 2 costs 6. By length, both rows of the first step have 12 cells, and the
    # costlier one costs 84; by cost, 8 lies alone, and the other row has 16 cells. The second step has 16 | 1.
    groups, lengths = Groups.from_lists([[0], [1], [2], [3]]), [(8, 4, 4), (2, 2, 2, 2), (16,), (1,)]
    advice = suggest_phase_capacities(groups, lengths, rows=2, count=4, multiple=1, quadratic_cost_weight=1.0)
    assert advice is not None and advice.capacities == ((16,), (12, 16))
    assert advice.cost_saved == (1 - (72 + 272) / (84 + 272), 0.0)  # rows of 12 have no room


def test_balancing_and_suggestions(description):
    isf = next(result for result in description.grouping_results if result.policy == "isf" and not result.padded)
    assert isf.rows > 0 and 0 <= isf.wasted_flops_share < 1
    assert description.published_isf.capacity == {"tokens": 16.0, "patches": 16.0}  # 8 patches are half an image
    assert description.published_isf.oversized == 0
    assert [advice.capacity["tokens"] for advice in description.row_suggestions] == [64, 128, 256]
    assert description.gin[:2] == ("data_config.DataConfig:", "  tokens = 64")
    assert [bucket.padding for bucket in description.buckets["patches"]] == [0.0]


def test_the_grouping_that_wastes_least_is_suggested(description):
    shares = {result.policy: result.wasted_flops_share for result in description.grouping_results if not result.padded}
    least = min((share, policy) for policy, share in shares.items() if share is not None)
    assert description.suggested_grouping.wasted_flops_share == least[0]
    worst = max((share, policy) for policy, share in shares.items() if share is not None)[1]
    other = dataclasses.replace(description, grouping=worst)
    said = f"The policy {other.suggested_grouping.policy} wastes the least of all"
    assert any(said in sentence for sentence in in_words(other))
    best = dataclasses.replace(description, grouping=description.suggested_grouping.policy)
    assert not any("wastes the least" in sentence for sentence in in_words(best))
    assert f"  grouping = {other.suggested_grouping.policy!r}" in other.gin


def test_suggested_rows_leave_configured_thresholds_of_isf_out(description):
    roomy = dataclasses.replace(CAPACITY, lengths={"patches": 40})  # two images are less than 95% of it
    config = dataclasses.replace(CONFIG, patches=40, grouping="isf")
    default, changed = (
        describe_dataset(
            made_up(), dataclasses.replace(config, isf_thresholds=thresholds), roomy, WORK, MODULES, WEIGHTS, 3
        )
        for thresholds in ((), (("patches", 32),))
    )
    assert changed.configured != default.configured and changed.row_suggestions == default.row_suggestions
    assert "  isf_thresholds = ()" in changed.gin and not any("isf_thresholds" in line for line in description.gin)


def test_suggestions_of_isf_are_shown_to_paste(description):
    shown = io.StringIO()
    print_description(description, Console(file=shown, width=120))
    lines = "\n".join(description.published_isf.gin)
    assert lines in shown.getvalue() and lines in html.unescape(html_page(description, ""))


def test_terminal_output_fits_its_width(description):
    shown = io.StringIO()
    print_description(description, Console(file=shown, width=120, highlight=False))
    text = shown.getvalue()
    assert "text 87.5%, vision 12.5%" in text and "2 unreadable seen samples are refused, such as a.png" in text
    assert "truncated [bold]</script>" in text
    assert "As configured: 2 rows a step, a row of at most 64 tokens, 32 patches, 8 samples" in text
    assert text.endswith("\n".join(description.gin) + "\n") and "…" not in text


def test_images_near_the_capacity_give_a_remark(description):
    assert description.remark == ""  # one of 16 patches is not shrunk to 32
    tight = described(made_up(), dataclasses.replace(CAPACITY, lengths={"patches": 16}))
    assert tight.row_suggestions[-1].capacity["patches"] > 16 and tight.remark == IMAGES_GROW_REMARK
    shown = io.StringIO()
    print_description(tight, Console(file=shown, width=120))
    assert IMAGES_GROW_REMARK in shown.getvalue() and IMAGES_GROW_REMARK in html_page(tight, "")


def test_too_few_samples_for_a_step_give_no_suggestions():
    few = described(made_up(1, 0, ()))
    assert few.row_suggestions == few.gin == ()
    assert {result.wasted_flops_share for result in few.grouping_results} == {None}
    shown = io.StringIO()
    print_description(few, Console(file=shown, width=120))
    assert (
        shown.getvalue().count("No sample is refused.") == 1 and "rows of the configured tokens" not in shown.getvalue()
    )


def test_rows_with_too_much_room_are_told_why_they_waste_more_than_padded_batches(description):
    shown = io.StringIO()
    print_description(description, Console(file=shown, width=120))
    assert "Packed rows waste more" not in shown.getvalue()  # they waste nothing
    roomy = described(made_up(), dataclasses.replace(CAPACITY, lengths={"patches": 320}))
    print_description(roomy, Console(file=shown, width=320))
    wasted = f"{roomy.row_suggestions[0].wasted_flops_share:.1%}"
    assert "Packed rows waste more than padded batches here: a row has the configured capacities" in shown.getvalue()
    assert f"With the suggested capacities below, packed rows waste {wasted}." in shown.getvalue()


def test_words_come_first_and_say_what_the_figures_say(description):
    assert in_words(description) == [
        "64 samples of the kinds seen (50.0%) and text (50.0%) were drawn as training draws them.",
        "12.5% of their tokens are in the loss; each has some, or an image to generate.",
        "A step takes 2 rows. A row holds at most 64 tokens, 32 patches and 8 samples; on average the policy first_fit "
        "puts 4 samples into it.",
        "Padding makes up 0.0% of the tokens of backbone and 0.0% of the patches of vision; together they take 0.0% of "
        "a step's FLOPs (waste, padding of static shapes).",
        "If padding cost nothing, replicas would still wait for the fullest row: 0.0% for the tokens of backbone and "
        "0.0% for the patches of vision (OmniBal's DistRatio).",
        "With the suggested capacities, padding takes 0.0% of a step's FLOPs.",
        "3 samples are refused: 2 unreadable of kind seen and 1 oversized of kind seen. None is cut.",
    ]
    shown = io.StringIO()
    print_description(description, Console(file=shown, width=120, highlight=False))
    assert shown.getvalue().startswith("\n".join(in_words(description)))
    assert counted(1, "images") == "1 target image" and counted(1200, "tokens") == "1,200 tokens"


def test_samples_that_teach_nothing_are_counted():
    silent = described(made_up(untaught=True))
    assert (silent.untaught, silent.target_share) == (32, 3 * 32 / (64 * 16))
    assert "32 samples have none and no image to generate, so they teach nothing" in in_words(silent)[1]


def test_the_json_document_has_all_but_the_pictures(description):
    document = json.loads(json.dumps(description_json(description)))
    assert [refusal["key"] for refusal in document["refusals"]] == ["a.png", "sample 7", "b.png"]
    assert [summary["samples"] for summary in document["refused"]] == [2, 1]
    assert document["isf_gin"]["longest sample"] == list(description.published_isf.gin)
    assert document["gin"] == list(description.gin) and document["words"] == in_words(description)
    assert "examples" not in document


def test_frames_have_every_policy_and_every_sample(description):
    frame = description.to_frame()
    assert len(frame) == 2 * len(description.grouping_results) and set(frame.modality) == {"tokens", "patches"}
    configured = frame[(frame.policy == "first_fit") & ~frame.padded]
    assert dict(zip(configured.modality, configured.padding_share, strict=True)) == description.configured.padding_share
    samples = made_up().to_frame()
    assert list(samples.columns) == ["sample_id", *made_up().units, "fits"]
    assert samples.tokens.sum() == 64 * 16 and samples.patches.sum() == 32 * 16 and samples.fits.all()


def test_capacities_of_other_encoders_are_suggested_as_the_configuration_takes_them(description):
    suggestion = dataclasses.replace(description.row_suggestions[0], capacity={"tokens": 64, "windows": 32})
    lines = dataclasses.replace(description, row_suggestions=(suggestion,)).gin
    assert lines[:2] == ("data_config.DataConfig:", "  tokens = 64") and lines[3:] == (
        "  capacities = (('windows', 32),)",
    )
