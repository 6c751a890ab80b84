"""Verification by real processes that form one cluster."""

import json

import pytest

from mmjax.training.verification.comparison import ALL_MODULES
from tests.mmjax.training.verification.verify_as_one_of_several import FAULTY, layouts
from tests.sharding.runtime.processes import run_cluster

pytestmark = pytest.mark.processes

PROCESSES = 3


def test_several_processes_find_what_one_finds_and_a_fault_of_one_of_them(tmp_path):
    run_cluster(
        "tests.mmjax.training.verification.verify_as_one_of_several",
        (2,) * PROCESSES,
        str(PROCESSES),
        str(tmp_path),
        timeout=300,
    )
    first, *others = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(PROCESSES)]
    assert all(reports == first for reports in others)
    assert [report["layout"] for report in first] == [layout.name for layout in layouts()]
    assert [report["ok"] for report in first] == [True, True, False]
    for report in first[:-1]:
        assert set(report["modules"]) == {"vision", "backbone", ALL_MODULES}
        for name in ("vision", "backbone"):
            assert report["modules"][name]["gradient"]["error"] > 0 and report["modules"][name]["update"]
        assert report["modules"]["backbone"]["loss"] and report["modules"]["backbone"]["evaluation"]
    assert first[-1]["layout"] == FAULTY
    wrong = {name: module for name, module in first[-1]["modules"].items() if not module["ok"]}
    assert set(wrong) == {"backbone"} and wrong["backbone"]["update"]["error"] > 1
    assert wrong["backbone"]["gradient"]["error"] <= wrong["backbone"]["gradient"]["tolerance"]
