"""The drawing of a plan: each pipeline rank on its devices, and large plans too."""

import dataclasses
import xml.etree.ElementTree

from mmjax.reporting.plan_drawing import plan_drawing
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_html import placement_drawing
from sharding.plans.unit_plan import UnitPlan
from tests.mmjax.reporting.workdirs import PLAN
from tests.unit_plans import module_unit


def hints(plan: Plan) -> list[str]:
    return [node.text for node in xml.etree.ElementTree.fromstring(plan_drawing(plan)).iter("title")]


def test_each_stage_says_its_devices_and_layout():
    assert hints(PLAN) == [
        "vision (vision): devices 0-1, 2 layers, dp 2",
        "backbone 0 (backbone): devices 2-3, 2 layers, tp 2",
        "backbone 1 (backbone): devices 4-5, 1 layer, tp 2",
    ]


def test_devices_that_are_apart_are_drawn_apart():
    unit = UnitPlan("all", ("vision", "backbone"), (0, 1, 6, 7), layers=(5,), parallelism=Parallelism(dp=4))
    assert hints(Plan((unit,))) == ["all (vision > backbone): devices 0-1,6-7, 5 layers, dp 4"] * 2


def test_chunks_of_a_pipeline_rank_share_its_row():
    backbone = dataclasses.replace(
        PLAN.units[1],
        layers=(1, 2, 1, 1),
        recompute=("none",) * 4,
        parallelism=dataclasses.replace(PLAN.units[1].parallelism, chunks=2),
    )
    assert hints(Plan((backbone,), 2, "interleaved")) == [
        "backbone 0 (backbone): devices 2-3, 1, 1 layers, tp 2",
        "backbone 1 (backbone): devices 4-5, 2, 1 layers, tp 2",
    ]


def test_many_pipeline_ranks_are_cut_off_and_counted():
    stages = 80
    unit = module_unit("backbone", range(stages), layers=(1,) * stages, name="deep", recompute=("none",) * stages)
    drawn = plan_drawing(Plan((unit,)))
    assert "20 more pipeline ranks are not drawn." in drawn and drawn.count("<title>") == 60


def test_copies_of_a_pipeline_have_rows_of_their_own():
    unit = module_unit("vision", range(8), layers=(2, 1), dp=2, pipeline_replicas=2)
    assert hints(Plan((unit,), 2)) == [
        "vision 0, pipeline replica 0 (vision): devices 0-1, 2 layers, dp 2",
        "vision 1, pipeline replica 0 (vision): devices 2-3, 1 layer, dp 2",
        "vision 0, pipeline replica 1 (vision): devices 4-5, 2 layers, dp 2",
        "vision 1, pipeline replica 1 (vision): devices 6-7, 1 layer, dp 2",
    ]
    titles = [node.text for node in xml.etree.ElementTree.fromstring(placement_drawing((unit,))).iter("title")]
    assert titles[2] == "vision, stage 0 of pipeline replica 1, 2 layers: devices 4 to 5"
