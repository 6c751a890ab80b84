"""Files from outside, mutated: each reader returns or ends in one line, never in another exception."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.common.errors import UserError
from data.datasets.spoken_clips import FORMAT_VERSION, MANIFEST, read_spoken_clips
from data.media.tilings.tiling import DynamicTiling
from data.text.prompt_format import PromptFormat
from data.text.tokenizer import tokenizer_from_json
from data.text.word_tokenizer import WordTokenizer
from mmjax.weights.safetensors_file import LENGTH_BYTES, read_header

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([2**62, 1e300, "", "x", "a\nb", "os", "F32"])
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from("ab"), SCALARS, max_size=1)
TEXTS = st.sampled_from(
    ["", "{", "[]", "null", "NaN", '{"a": 1, "a": 2}', "[" * 100_000, "9" * 5000, '"\\ud800"', "\ufeff{}", "\x00"]
)


def _read_safetensors(text: str, folder: pathlib.Path) -> None:
    header = text.encode()
    (folder / "x").write_bytes(len(header).to_bytes(LENGTH_BYTES, "little") + header + bytes(64))
    read_header(folder / "x")


def _read_clips(text: str, folder: pathlib.Path) -> None:
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    read_spoken_clips(folder, "train")


CLIP = {"file": "a.flac", "text": "b", "voice": "c", "split": "train", "speed": 1, "samples": 3}
READERS: dict[str, tuple[Callable[[str, pathlib.Path], Any], Any]] = {
    "words": (lambda text, _: tokenizer_from_json(text), json.loads(WordTokenizer(("a", "b")).to_json())),
    "hugging_face": (
        lambda text, _: tokenizer_from_json(text),
        {"kind": "hugging_face", "names": {"unknown": "<unk>"}, "content": "{}"},
    ),
    "prompt_format": (
        lambda text, _: PromptFormat.from_json(text),
        json.loads(PromptFormat(tiling=DynamicTiling(tile_size=4)).to_json()),
    ),
    "safetensors": (
        _read_safetensors,
        {"__metadata__": {}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}},
    ),
    "spoken_clips": (_read_clips, {"format": FORMAT_VERSION, "made_by": "x", "rate": 16000, "clips": [CLIP]}),
}


def mutate(document: Any, draw: Callable[[st.SearchStrategy], Any]) -> Any:
    """The document with one value, at any depth, replaced or left out."""
    if isinstance(document, dict | list) and document and draw(st.integers(0, 4)):
        copy = document.copy()
        key = draw(st.sampled_from(list(document) if isinstance(document, dict) else range(len(document))))
        if draw(st.integers(0, 4)):
            copy[key] = mutate(document[key], draw)
        else:
            del copy[key]
        return copy
    return draw(VALUES)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_reader_returns_or_refuses_in_a_line(name, tmp_path, data):
    read, document = READERS[name]
    text = data.draw(TEXTS) if not data.draw(st.integers(0, 5)) else json.dumps(mutate(document, data.draw))
    try:
        read(text, tmp_path)
    except UserError as error:
        assert "\n" not in str(error)
