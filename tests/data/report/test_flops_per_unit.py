import dataclasses

from data.report.flops_per_unit import flops_per_unit
from data.samples.sample_format import SampleFormat
from tests.tiny_model import AUDIO, tiny_model


def test_work_grows_with_the_module_and_only_with_it():
    model = tiny_model()
    form = SampleFormat.for_model(model, 8)
    work, deeper = (flops_per_unit(each, form) for each in (model, tiny_model(depth=6)))
    assert set(work) == {"tokens", "patches", "images"} and min(work.values()) > 0
    assert deeper["tokens"] > work["tokens"]
    assert {name: deeper[name] for name in ("patches", "images")} == {
        name: work[name] for name in ("patches", "images")
    }


def test_a_frame_is_half_of_a_position():
    model = dataclasses.replace(tiny_model(), encoders=(AUDIO,), generators=())
    work = flops_per_unit(model, SampleFormat.for_model(model, 0, 8))
    deeper = dataclasses.replace(model, encoders=(dataclasses.replace(AUDIO, depth=AUDIO.depth + 1),))
    more = flops_per_unit(deeper, SampleFormat.for_model(deeper, 0, 8))
    layer = 4 * AUDIO.width**2 + 2 * AUDIO.width * AUDIO.ffn  # multiply-adds of a position
    assert set(work) == {"tokens", "frames"}
    assert more["frames"] - work["frames"] == 2 * layer / 2
