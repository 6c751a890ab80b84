"""Optional packages: the quickstart does without them, and what needs one names its extra in one line."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

EXTRAS = ("av", "datasets", "jinja2", "pyarrow", "soundfile", "soxr")
BLOCKED = f"""
import sys
for name in {EXTRAS}:
    sys.modules[name] = None  # importing it raises ImportError
"""


def run_without_extras(program: str) -> str:
    """What a program prints in which no optional package can be imported."""
    done = subprocess.run([sys.executable, "-c", BLOCKED + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_easy_vqa_batches_need_no_extra():
    program = """
from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.datasets import conversations, moving_shapes, prompts
from data.packing.pipeline import training_batches
from data.report import description
from data.sources import array_record, librispeech, llava, webdataset
from tests.small_vqa import SmallVQA
batches = training_batches(DataConfig(window=64), ModelConfig(), SmallVQA("train"))
print(sorted(next(batches).arrays))
batches.close()
"""
    # grain itself imports array_record.
    assert (
        run_without_extras(program.replace("ModelConfig()", "ModelConfig()")) == "['backbone', 'generator', 'vision']\n"
    )


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            "data.media.sound.audio",
            "decoding audio needs the package soundfile, which is not installed: pip install 'mmjax[audio]'",
        ),
        (
            "data.media.clips.video",
            "decoding video needs the package av, which is not installed: pip install 'mmjax[video]'",
        ),
        ("data.media.clips.video_writing", "writing video needs the package av"),
        (
            "data.text.templates.jinja_environment",
            "a tokenizer's own chat template needs the package jinja2, which is not installed: pip install "
            "'mmjax[chat]'",
        ),
        ("data.datasets.spoken_easy_vqa", "pip install 'mmjax[audio]'"),
        (
            "data.sources.parquet",
            "Parquet needs the package pyarrow, which is not installed: pip install 'mmjax[parquet]'",
        ),
        (
            "data.sources.hugging_face",
            "a Hugging Face data set needs the package datasets, which is not installed: pip install "
            "'mmjax[huggingface]'",
        ),
        ("data.producers.client", "the preprocessing service needs the package pyarrow"),
        ("data.producers.server", "pip install 'mmjax[service]'"),
    ],
)
def test_modules_name_the_extra_that_they_need(module, message):
    program = f"""
import importlib
from data.errors import DataError
try:
    importlib.import_module({module!r})
except DataError as error:
    print(error)
"""
    printed = run_without_extras(program)
    assert message in printed and len(printed.splitlines()) == 1


def test_a_clip_without_the_audio_extra_names_it(tmp_path):
    program = f"""
from data.datasets.conversations import SampleBuilder
from data.errors import DataError
from data.records import AudioPart, Media, Record, TextPart, Turn
from data.samples.audio_format import FrameFormat
from data.samples.sample_format import SampleFormat
from data.text.byte_tokenizer import ByteTokenizer
from data.text.templates.chat_template import QUESTION
turns = Turn("user", (AudioPart(Media.from_file("{tmp_path}/a.wav")),)), Turn("assistant", (TextPart("yes"),))
builder = SampleBuilder(QUESTION, ByteTokenizer(), SampleFormat((FrameFormat(),), None), None)
try:
    builder(Record("r", turns), "speech")
except DataError as error:
    print(error)
"""
    assert "pip install 'mmjax[audio]'" in run_without_extras(program)
