import dataclasses
import json

import pytest

from sharding.plans.plan_purpose import ModuleSize, NamedConfiguration, PlanPurpose
from sharding.simulation.pages.html_page import html_fragment, html_page
from sharding.simulation.pages.perfetto import perfetto_trace
from sharding.simulation.pages.subject import parameters_in_words, subject_in_words
from tests.sharding.html.documents import parsed_page, words
from tests.sharding.steps import uneven_timeline

PURPOSE = PlanPurpose(
    configuration=NamedConfiguration(gin_file=("models/mllm_72b.gin",), data="laion_like"),
    model=(
        ModuleSize(module="vision", layers=32, parameters=652_946_688),
        ModuleSize(module="generator", layers=1, parameters=959_000_000),
    ),
    rows=1920,
    cluster="a800",
    devices=1296,
)
WORDS = (
    "mllm_72b on laion_like: vision (653 M parameters, 32 layers), generator (959 M parameters, 1 layer). "
    "1,920 rows a step, 1,236 of 1,296 devices of a800."
)


def test_a_purpose_in_words():
    assert subject_in_words(PURPOSE, 1236) == WORDS
    assert subject_in_words(PlanPurpose(), 3) == "model. 3 devices."
    profiled = dataclasses.replace(PURPOSE.configuration, profile="p.json")
    assert subject_in_words(dataclasses.replace(PURPOSE, configuration=profiled), 1236) == (
        f"{WORDS} Layers take what p.json has measured."
    )
    assumed = dataclasses.replace(PURPOSE, hops="asynchronous", without=("jitter", "dispatch"))
    assert subject_in_words(assumed, 1236) == (
        f"{WORDS} Hops occupy no device (asynchronous). Effects left out: jitter, dispatch."
    )


@pytest.mark.parametrize(
    ("parameters", "text"), [(0, "0"), (999, "999"), (12_345, "12.3 k"), (68_976_648_192, "69.0 B")]
)
def test_numbers_of_parameters_in_words(parameters, text):
    assert parameters_in_words(parameters) == text


def test_page_fragment_and_trace_say_what_the_step_is_of_where_it_is_known():
    timeline = uneven_timeline()
    named = dataclasses.replace(timeline, purpose=PURPOSE)
    sentence = subject_in_words(PURPOSE, timeline.groups.device_count)
    assert sentence in words(parsed_page(html_page(named, "title"))) and sentence in html_fragment(named)
    assert "subject" not in html_page(timeline, "title")
    assert json.loads(perfetto_trace(named))["otherData"]["made_for"] == PURPOSE.document()
    assert "made_for" not in json.loads(perfetto_trace(timeline))["otherData"]
