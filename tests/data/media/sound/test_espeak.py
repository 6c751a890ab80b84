import numpy as np
import pytest

from data.errors import DataError
from data.media.sound.espeak import Espeak
from tests.data.real_data import espeak


def test_synthesis_is_deterministic_and_follows_the_speed():
    said = espeak().synthesize("is there a circle?", "en-us+f2", 180)
    assert said.dtype == np.float32 and 0.5 < len(said) / 16_000 < 3 and 0.05 < np.abs(said).max() <= 1
    np.testing.assert_array_equal(espeak().synthesize("is there a circle?", "en-us+f2", 180), said)
    assert len(espeak().synthesize("is there a circle?", "en-us+f2", 260)) < 0.9 * len(said)


def test_voices_differ():
    said = [espeak().synthesize("what is it?", voice, 180) for voice in ("en-us", "en-us+m3", "en-gb+m3")]
    assert len({clip.tobytes() for clip in said}) == 3


def test_text_is_never_parsed_as_an_option():
    assert len(espeak().synthesize("--version", "en-us", 180)) > 1000


@pytest.mark.parametrize(
    ("voice", "message"),
    [
        ("en-uz", "has no language 'en-uz'; espeak-ng --voices lists"),
        ("en-us+m33", r"voice en-us\+m33: .* has no variant 'm33'; espeak-ng --voices=variant lists"),
        ("en-us+", "has no variant ''"),
        ("", "has no language ''"),
    ],
)
def test_an_unknown_voice_is_refused(voice, message):
    espeak().check_voices(["en-us", "en-gb+f4", "en-gb-scotland+m4"], [180])
    with pytest.raises(DataError, match=message):
        espeak().check_voices(["en-us", voice], [180])


@pytest.mark.parametrize("speed", [79, 451])
def test_speeds_outside_the_range_are_refused(speed):
    with pytest.raises(DataError, match=f"a speed of {speed} words per minute; espeak-ng speaks 80 to 450"):
        espeak().check_voices(["en-us"], [speed])


def test_the_message_of_a_failing_program_is_quoted():
    with pytest.raises(DataError, match="voice does not exist"):
        espeak().synthesize("a", "nobody", 180)


def test_a_missing_program_names_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="not installed; install .* apt-get install espeak-ng"):
        Espeak()


def test_a_program_that_cannot_be_run_is_named(monkeypatch, tmp_path):
    program = tmp_path / "espeak-ng"
    program.write_text("#!/nowhere\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="espeak-ng --version cannot be run"):
        Espeak()
