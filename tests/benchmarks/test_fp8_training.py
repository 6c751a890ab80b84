"""The models that the benchmark trains, and the differences that it reports."""

import pytest

from benchmarks.fp8_training import describe, differences, variants
from configs.architectures import ModelConfig

CURVES = {
    "bfloat16": {"backbone": [2.0, 1.0], "generator": [0.5, 0.4]},
    "fp8": {"backbone": [2.02, 1.005], "generator": [0.5, 0.38]},
}


def test_the_models_differ_in_their_number_formats_alone():
    models = variants(ModelConfig().with_fp8(("attention",)))
    assert {name: (model.dtype, model.uses_fp8) for name, model in models.items()} == {
        "bfloat16": ("bfloat16", False),
        "fp8": ("bfloat16", True),
        "float32": ("float32", False),
    }
    assert models["fp8"].encoders[0].fp8 == models["fp8"].backbone.fp8 == ("attention", "mlp")
    assert {model.with_fp8(()).backbone for model in models.values()} == {ModelConfig().backbone}


def test_differences_are_relative_to_bfloat16_window_by_window():
    first, last = differences(CURVES)
    assert first["fp8"] == pytest.approx({"backbone": 0.01, "generator": 0.0})
    assert last["fp8"] == pytest.approx({"backbone": 0.005, "generator": -0.05})
    assert describe(CURVES).splitlines()[-1] == "| 21 to 40 | 1.0000 | +0.50% | 0.4000 | -5.00% |"
