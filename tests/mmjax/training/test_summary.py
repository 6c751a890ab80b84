"""The summary of a run."""

from mmjax.training.rescheduling.rescheduler import OrderSwap
from mmjax.training.summary import run_summary
from mmjax.training.train_loop import TrainResult
from sharding.plans.plan import single_device_plan
from sharding.specs.modules import module_graph
from tests.tiny_model import tiny_model


def test_the_summary_counts_the_tokens_of_the_backbone_whatever_its_name():
    result = TrainResult(
        step=4,
        steps_of_this_run=4,
        seconds=9.0,
        compile_seconds=5.0,
        step_seconds=2.0,
        losses={},
        score=None,
        counts={"vision": (8, 16), "llama": (300, 400)},
        order_swaps=(OrderSwap(step=9, measured_step=1, before=0.5, after=0.25, same_sums=True),),
        stopped_by="",
        data_counters={},
    )
    plan = single_device_plan(module_graph(tiny_model(name="llama")))
    summary = run_summary(result, plan, "llama", "")
    assert summary["tokens_per_second"] == 150 and summary["padding"] == {"vision": 0.5, "llama": 0.25}
    assert summary["order_swaps"] == [{"step": 9, "measured_step": 1, "before": 0.5, "after": 0.25, "same_sums": True}]
