import pytest

from configs.architectures import AudioConfig, GeneratorConfig, ModelConfig, VisionConfig
from data.errors import DataError
from data.formats import DrawingFormat, FrameFormat, PatchFormat, SampleFormat


def test_the_format_follows_the_model():
    model = ModelConfig(
        encoders=(VisionConfig(patch=4, merge=3), AudioConfig(mels=8, merge=5)),
        generators=(GeneratorConfig(image_size=16, conditions=2),),
    )
    form = SampleFormat.of(model, patches=36, frames=40)
    assert form == SampleFormat(
        PatchFormat("vision", 4, 3, 36), FrameFormat("audio", 8, 5, 40), DrawingFormat("generator", 16, 2)
    )
    assert (form.patches.cell, form.patches.width, form.patches.unit) == (9, 48, 12)
    assert (form.frames.cell, form.frames.width) == (10, 8)
    assert list(form.streams) == ["patches", "frames"]


def test_a_class_token_has_a_cell_of_its_own():
    form = SampleFormat.of(ModelConfig((VisionConfig(merge=3, class_token=True),), generators=()), patches=36).patches
    assert (form.front, form.tokens(36), form.attended(36)) == (9, 3, 28)
    plain = PatchFormat("vision", merge=3, most=36)
    assert (plain.front, plain.tokens(36), plain.attended(36)) == (0, 4, 36)
    with pytest.raises(DataError, match="a row of 9 patches holds a class token and no image"):
        PatchFormat(merge=3, most=9, class_token=True)


def test_a_model_without_a_modality_has_no_format_for_it():
    assert SampleFormat.of(ModelConfig(encoders=(), generators=()), 0) == SampleFormat(None, None, None)


@pytest.mark.parametrize(
    ("model", "patches", "message"),
    [
        (ModelConfig(encoders=(VisionConfig(), VisionConfig(name="second"))), 16, "the model has vision and second"),
        (ModelConfig(generators=(GeneratorConfig(), GeneratorConfig(name="other"))), 16, "has generator and other"),
        (
            ModelConfig(encoders=(VisionConfig(channels=1, pixel_mean=(0.0,), pixel_deviation=(1.0,)),)),
            16,
            "vision.channels is 1",
        ),
        (
            ModelConfig(generators=(GeneratorConfig(image_size=(16, 8)),)),
            16,
            r"generator.image_size is \(16, 8\); pictures to draw are square",
        ),
        (ModelConfig(), 18, r"a row of 18 patches must be a multiple of merge² = 4"),
        (ModelConfig(), 0, "PatchFormat.most is 0"),
        (ModelConfig(encoders=(AudioConfig(),)), 0, "FrameFormat.most is 0"),
    ],
)
def test_a_model_it_cannot_feed_is_refused(model, patches, message):
    with pytest.raises(DataError, match=message):
        SampleFormat.of(model, patches)
