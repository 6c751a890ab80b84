"""What a person reads of a verification."""

import io

from rich.console import Console

from mmjax.training.verification.comparison import Difference, LayoutReport, ModuleReport, print_verification

RIGHT = ModuleReport(Difference(1e-7, 1e-5), Difference(3e-6, 2e-4, "blocks/000/mlp/up/kernel"))
WRONG = ModuleReport(None, Difference(1.0, 2e-4, "projector/000/mlp/up/bias"))


def printed(reports):
    console = Console(file=io.StringIO(), width=160)
    assert print_verification(iter(reports), console) == reports
    return console.file.getvalue()


def test_a_wrong_module_is_named_with_its_worst_parameter():
    text = printed(
        [LayoutReport("dp 2", {"backbone": RIGHT}), LayoutReport("tp 2", {"vision": WRONG, "backbone": RIGHT})]
    )
    (row,) = [line.split() for line in text.splitlines() if "WRONG" in line]
    assert row == ["vision", "-", "1.0e+00", "2.0e-04", "WRONG", "projector/000/mlp/up/bias"]
    assert "1 of 2 layouts are wrong: tp 2" in text
    assert text.index("dp 2") < text.index("tp 2") < text.index("WRONG")


def test_all_right():
    text = printed([LayoutReport("dp 2", {"backbone": RIGHT})])
    assert "all 1 layouts agree" in text and "WRONG" not in text


def test_of_several_steps_the_worst_of_each_counts():
    worse = RIGHT.worse(ModuleReport(Difference(2e-7, 1e-5), Difference(1e-6, 2e-4)))
    assert (worse.loss.error, worse.gradient.error) == (2e-7, 3e-6)
