import pytest

from configs.architectures import AudioConfig, ModelConfig, UNetConfig, VisionConfig
from data.errors import DataError
from data.samples.audio_format import FrameFormat
from data.samples.image_format import PatchFormat
from data.samples.sample_format import SampleFormat, TargetImageFormat


def test_the_format_follows_the_model():
    model = ModelConfig(
        encoders=(VisionConfig(patch=4, merge=3), AudioConfig(mels=8, merge=5)),
        generators=(UNetConfig(image_size=16, conditions=2),),
    )
    form = SampleFormat.for_model(model, {"patches": 36, "frames": 40})
    assert form == SampleFormat(
        (
            PatchFormat(module="vision", patch=4, merge=3, max_length=36),
            FrameFormat(module="audio", mels=8, merge=5, max_length=40),
        ),
        TargetImageFormat("generator", 16, 2),
    )
    assert (
        form.encoder_formats["patches"].values_per_token,
        form.encoder_formats["patches"].value_width,
        form.encoder_formats["patches"].cell_size,
    ) == (9, 48, 12)
    assert (form.encoder_formats["frames"].values_per_token, form.encoder_formats["frames"].value_width) == (10, 8)
    assert list(form.encoder_formats) == ["patches", "frames"]


def test_class_tokens_and_registers_have_cells_of_their_own():
    model = ModelConfig((VisionConfig(merge=3, class_token=True),), generators=())
    (form,) = SampleFormat.for_model(model, {"patches": 36}).encoders
    assert (form.prefix_length, form.token_count(36), form.attended_positions(36)) == (9, 3, 28)
    registers = PatchFormat(module="vision", merge=2, max_length=36, prefix_tokens=5)
    assert (registers.prefix_length, registers.token_count(36), registers.attended_positions(36)) == (8, 7, 33)
    plain = PatchFormat(module="vision", merge=3, max_length=36)
    assert (plain.prefix_length, plain.token_count(36), plain.attended_positions(36)) == (0, 4, 36)
    with pytest.raises(DataError, match="a row of 9 patches holds no image behind its class token"):
        PatchFormat(merge=3, max_length=9, prefix_tokens=1)


def test_a_model_without_a_modality_has_no_format_for_it():
    assert SampleFormat.for_model(ModelConfig(encoders=(), generators=()), {}) == SampleFormat((), None)


@pytest.mark.parametrize(
    ("model", "patches", "message"),
    [
        (ModelConfig(encoders=(VisionConfig(), VisionConfig(name="second"))), 16, "the model has vision and second"),
        (ModelConfig(generators=(UNetConfig(), UNetConfig(name="other"))), 16, "has generator and other"),
        (
            ModelConfig(encoders=(VisionConfig(channels=1, pixel_mean=(0.0,), pixel_std=(1.0,)),)),
            16,
            "vision.channels is 1",
        ),
        (
            ModelConfig(generators=(UNetConfig(image_size=(16, 8)),)),
            16,
            r"generator.image_size is \(16, 8\); target images are square",
        ),
        (ModelConfig(), 18, "a row of 18 patches must be a multiple of 4, the patches of a backbone token of vision"),
        (ModelConfig(), 0, "PatchFormat.max_length is 0"),
        (ModelConfig(encoders=(AudioConfig(),)), 0, "FrameFormat.max_length is 0"),
    ],
)
def test_models_that_the_pipeline_cannot_feed_are_refused(model, patches, message):
    with pytest.raises(DataError, match=message):
        SampleFormat.for_model(model, {"patches": patches, "frames": 0})


def test_a_field_without_a_capacity_is_named_with_the_setting():
    with pytest.raises(DataError, match=r"audio reads frames, .* DataConfig.capacities = \(\('frames', \.\.\.\),\)"):
        SampleFormat.for_model(ModelConfig(encoders=(AudioConfig(),)), {"patches": 16})
