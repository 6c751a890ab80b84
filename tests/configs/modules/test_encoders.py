"""Options of encoders that contradict each other."""

import pytest

from configs.modules.encoders import AudioConfig, VisionConfig
from configs.modules.projectors import MLPProjectorConfig


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AudioConfig(pool=0), "AudioConfig.pool is 0"),
        (
            lambda: AudioConfig(merge=3, pool=2),
            "AudioConfig.pool = 2 does not divide the 3 positions",
        ),
        (lambda: VisionConfig(pool=4, final_norm=False), "VisionConfig.pool = 4, but there is no final norm"),
        (lambda: AudioConfig(chunk=-1), "AudioConfig.chunk is -1"),
        (lambda: VisionConfig(interpolation="nearest"), "interpolation is 'nearest'"),
        (lambda: MLPProjectorConfig(hidden="both"), "hidden is 'both'; choose from backbone, positions"),
    ],
)
def test_contradictory_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_token_is_projected_from_the_averages_of_its_positions():
    assert AudioConfig(merge=4, pool=2).projected_positions == 2
    assert VisionConfig(merge=2).projected_positions == 4
