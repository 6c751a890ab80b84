"""What a dry run prints, draws and writes as JSON."""

import io
import json

import pytest
from rich.console import Console

from mmjax.reporting.dry_run_page import dry_run_fragment, dry_run_page
from mmjax.reporting.dry_run_tables import (
    collective_figures,
    dry_run_document,
    in_words,
    memory_figures,
    print_dry_run,
    program_figures,
)
from mmjax.training.dry_run.device_memory import PLANNED_KINDS
from tests.dry_runs import made_dry_run


def test_words_say_what_fits_and_which_program_computes_more_than_the_model():
    assert in_words(made_dry_run()) == (
        "2 distinct programs of 7 stages on 16 devices, compiled for h100 in 5.000 s. The fullest devices, of backbone "
        "1, take 72.0 GB of the 80.0 GB that arrays can take, which fits, with 8.00 GB to spare; planners count 66.0 "
        "GB (-8.3%), and 70.0 GB (-2.8%) if every row is full. backbone_stage1_forward computes 1.5 times the matmuls "
        "of the model."
    )
    assert "which does not fit, by 2.00 GB; planners" in in_words(made_dry_run(room=70e9))
    assert made_dry_run().fits and not made_dry_run(room=70e9).fits


def test_memory_is_shown_by_kind_beside_the_planners():
    (row,) = memory_figures(made_dry_run(room=70e9)).rows
    assert row[:6] == ("backbone 1", "66.0 GB", "72.0 GB", "-8.3%", "-2.8%", "-2.00 GB")
    assert row[6:] == ("11.00 / 12.00",) * len(PLANNED_KINDS)


def test_programs_show_their_flops_beside_the_models():
    forward, update = program_figures(made_dry_run()).rows
    assert forward == (
        "backbone_stage1_forward", "6", "3.00 GB", "15.00", "1.50", "1.13 GB", "1.06 GB", "1.00 GB", "2.500 s"
    )  # fmt: skip
    assert update[4] == ""


def test_equal_collectives_are_one_row_and_the_largest_come_first():
    rows = [row for row in collective_figures(made_dry_run()).rows if row[0] == "backbone_stage1_forward"]
    assert [row[1:6] for row in rows] == [
        ("all-gather", "1", "1.00 GB", "1.00 GB", "synchronous"),
        ("all-gather", "64", "1.00 MB", "64.0 MB", "exposed"),
        ("all-gather", "32", "2.00 MB", "64.0 MB", "1 x [4, 8] over 16"),
    ]
    exposed = collective_figures(made_dry_run(), exposed_only=True).rows
    assert {row[5] for row in exposed} == {"synchronous", "exposed"}


def test_the_document_has_all_figures():
    document = json.loads(json.dumps(dry_run_document(made_dry_run())))
    assert document["fits"] and document["memory"][0]["compiled_bytes"] == 72e9
    program = document["programs"][0]
    assert program["flops"] / program["model_flops"] == pytest.approx(1.5)
    assert program["exposed_bytes"] == 1_064_000_000 and program["exchanged_bytes"] == 1_128_000_000
    assert [entry["times"] for entry in program["collectives"]] == [64, 32, 1]


def test_the_page_and_the_terminal_show_the_same_tables():
    page, fragment, output = (
        dry_run_page(made_dry_run(), "Dry run of a model"),
        dry_run_fragment(made_dry_run()),
        io.StringIO(),
    )
    print_dry_run(made_dry_run(), Console(file=output, width=120))
    assert page.startswith("<!doctype html>") and "<h1>Dry run of a model, for h100</h1>" in page
    for text in ("backbone_stage1_forward", "11.00 / 12.00"):
        assert text in page and text in fragment and text in output.getvalue()
    assert "1 x [4, 8] over 16" in page and "1 x [4, 8]" not in output.getvalue(), "a terminal shows exposed ones"
