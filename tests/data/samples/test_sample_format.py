import pytest

from configs.architectures import AudioConfig, GeneratorConfig, ModelConfig, VisionConfig
from data.errors import DataError
from data.samples.sample_format import FrameFormat, PatchFormat, SampleFormat, TargetImageFormat


def test_the_format_follows_the_model():
    model = ModelConfig(
        encoders=(VisionConfig(patch=4, merge=3), AudioConfig(mels=8, merge=5)),
        generators=(GeneratorConfig(image_size=16, conditions=2),),
    )
    form = SampleFormat.for_model(model, patches=36, frames=40)
    assert form == SampleFormat(
        PatchFormat("vision", 4, 3, 36), FrameFormat("audio", 8, 5, 40), TargetImageFormat("generator", 16, 2)
    )
    assert (form.patches.values_per_token, form.patches.value_width, form.patches.cell_size) == (9, 48, 12)
    assert (form.frames.values_per_token, form.frames.value_width) == (10, 8)
    assert list(form.encoder_formats) == ["patches", "frames"]


def test_a_class_token_has_a_cell_of_its_own():
    form = SampleFormat.for_model(
        ModelConfig((VisionConfig(merge=3, class_token=True),), generators=()), patches=36
    ).patches
    assert (form.prefix_length, form.token_count(36), form.attended_positions(36)) == (9, 3, 28)
    plain = PatchFormat("vision", merge=3, max_length=36)
    assert (plain.prefix_length, plain.token_count(36), plain.attended_positions(36)) == (0, 4, 36)
    with pytest.raises(DataError, match="a row of 9 patches holds a class token and no image"):
        PatchFormat(merge=3, max_length=9, class_token=True)


def test_a_model_without_a_modality_has_no_format_for_it():
    assert SampleFormat.for_model(ModelConfig(encoders=(), generators=()), 0) == SampleFormat(None, None, None)


@pytest.mark.parametrize(
    ("model", "patches", "message"),
    [
        (ModelConfig(encoders=(VisionConfig(), VisionConfig(name="second"))), 16, "the model has vision and second"),
        (ModelConfig(generators=(GeneratorConfig(), GeneratorConfig(name="other"))), 16, "has generator and other"),
        (
            ModelConfig(encoders=(VisionConfig(channels=1, pixel_mean=(0.0,), pixel_std=(1.0,)),)),
            16,
            "vision.channels is 1",
        ),
        (
            ModelConfig(generators=(GeneratorConfig(image_size=(16, 8)),)),
            16,
            r"generator.image_size is \(16, 8\); target images are square",
        ),
        (ModelConfig(), 18, r"a row of 18 patches must be a multiple of merge² = 4"),
        (ModelConfig(), 0, "PatchFormat.max_length is 0"),
        (ModelConfig(encoders=(AudioConfig(),)), 0, "FrameFormat.max_length is 0"),
    ],
)
def test_models_that_the_pipeline_cannot_feed_are_refused(model, patches, message):
    with pytest.raises(DataError, match=message):
        SampleFormat.for_model(model, patches)
