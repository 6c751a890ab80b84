"""The page and the notebook fragment of a description: plain words, all refusals, even ticks, nothing loaded."""

import base64
import dataclasses

import numpy as np
import pytest

from data.packing.rows.refusals import Refusal
from data.report.examples import MediaExamples, SampleExample
from data.report.html_page import html_fragment, html_page
from data.report.length_distribution import length_distribution
from data.report.plain_words import in_words
from data.report.shown_tokens import TokenRun
from tests.data.report.test_description import described, made_up
from tests.sharding.html.documents import parsed_fragment, parsed_page, tables, tick_positions, words

TITLE = "Data of </title><b>"
REFUSALS = tuple(Refusal("unreadable", "seen", f"{number}.png", f"cut </p> after {number}") for number in range(30))
EXAMPLE = SampleExample(
    kind="seen",
    role="typical",
    sample_id=7,
    sizes={"tokens": 16, "images": 1},
    tokens=(
        TokenRun(kind="special", branch=0, position=0, ids=(1,), text="<bos>", is_target=False),
        TokenRun(kind="medium", branch=0, position=1, ids=(4,) * 12, text="vision", is_target=False),
        TokenRun(kind="text", branch=1, position=13, ids=(40, 41), text="what <shape>?\n", is_target=False),
        TokenRun(kind="text", branch=1, position=15, ids=(42,), text="circle", is_target=True),
    ),
    targets=1,
    media=(MediaExamples("input of vision", (b"\x89PNG picture", b"\xff\xd8 picture"), 3),),
)


@pytest.fixture(scope="module")
def description():
    few = np.append(np.tile(np.arange(50, 150), 5), [90_000])
    plain = described(made_up(refused=REFUSALS))
    return dataclasses.replace(
        plain, examples=(EXAMPLE,), distributions=(*plain.distributions, length_distribution("frames", few))
    )


@pytest.fixture(scope="module")
def root(description):
    return parsed_page(html_page(description, TITLE))


def test_plain_words_stand_below_the_title(description, root):
    body = root.find("body")
    assert body.find("h1").text == root.find("head/title").text == TITLE
    assert [words(node) for node in list(body)[1 : 1 + len(in_words(description))]] == in_words(description)
    assert not list(root.iter("script"))


def test_all_refusals_are_listed_in_a_box_that_scrolls(root):
    listed = next(table for table in tables(root) if table[0][-1] == "reason")
    assert [tuple(row) for row in listed[1:]] == [(r.key, r.kind, r.cause, r.reason) for r in REFUSALS]
    details, _ = root.iter("details")
    assert words(details.find("summary")) == "Refused samples (30)" and details.get("open") is None
    assert "overflow:auto" in details.find("div").get("style") and details.find("div").get("tabindex") == "0"


def test_examples_show_text_media_and_why(root):
    (card,) = (node for node in root.iter("div") if node.get("class") == "panel sample")
    assert words(card).startswith("seen: typicalsample 7: 16 tokens, 1 target image; 1 tokens (6.2%) in the loss")
    assert "input of vision and 3 more" in words(card)
    assert [words(node) for node in card.iter("mark")] == ["circle"] and "what <shape>?↵" in words(card)
    assert [node.get("title") for node in card.iter("span") if node.get("title")] == [
        "token 1 to 12, id 4, not in the loss",
        "token 13 to 14, id 40 41, not in the loss",
        "token 15, id 42, in the loss",
    ]
    assert [words(node) for node in card.iter("code")] == ["<bos>"]
    assert "12 × vision" in words(card) and "1 4×12 40 41 42" in words(card)
    sources = [node.get("src") for node in card.iter("img")]
    assert [source.partition(",")[0] for source in sources] == ["data:image/png;base64", "data:image/jpeg;base64"]
    assert [base64.b64decode(source.partition(",")[2]) for source in sources] == list(EXAMPLE.media[0].files)


def test_histograms_have_even_ticks_and_say_what_lies_beyond(root):
    charts = [node for node in root.iter("svg") if (node.get("aria-label") or "").startswith("Histogram of frames")]
    ticks = [tick for tick in tick_positions(charts[0]) if tick[0] > 40 - 6]
    assert len(ticks) >= 3
    apart = np.diff([x for x, _ in ticks])
    assert apart == pytest.approx([apart[0]] * len(apart), abs=0.02) and apart[0] > 20
    assert len({label for _, label in ticks}) == len(ticks)
    assert "The grey bar counts the 1 that have 150 or more." in words(root)


def test_tables_have_few_columns(root):
    assert max(len(table[0]) for table in tables(root)) <= 5
    assert {node.get("style") for node in root.iter("div") if node.get("class") == "scroll"} == {"overflow-x:auto"}


def test_a_notebook_shows_the_description_without_scripts(description):
    root = parsed_fragment(html_fragment(description))
    assert words(root).startswith("".join(in_words(description))[:80]) and len(list(root.iter("img"))) == 2
    assert len([table for table in tables(root) if table[0][-1] == "reason"][0]) == 1 + len(REFUSALS)
