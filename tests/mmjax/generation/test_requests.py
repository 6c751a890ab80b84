"""Request files: invalid lines are refused by number before any model is loaded."""

import json
import pathlib

import easy_vqa
import pytest

from configs.common.errors import UserError
from mmjax.generation.requests import Request, read_requests

PICTURE = easy_vqa.get_test_image_paths()[0]


def written(folder: pathlib.Path, *lines: object) -> pathlib.Path:
    path = folder / "asked.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_requests_are_read_line_by_line(tmp_path):
    path = written(
        tmp_path,
        {"prompt": "what is <image>?", "image": PICTURE},
        "",
        {"prompt": "like <image> and <image>?", "image": [PICTURE, PICTURE], "seed": 3},
        {"prompt": "what happens?", "items": {"windows": PICTURE, "points": [PICTURE, PICTURE]}},
        {"prompt": "a circle", "output": str(tmp_path / "circle.png")},
    )
    assert read_requests(path) == [
        Request(prompt="what is <image>?", image=(PICTURE,)),
        Request(prompt="like <image> and <image>?", image=(PICTURE, PICTURE), seed=3),
        Request(prompt="what happens?", items={"windows": (PICTURE,), "points": (PICTURE, PICTURE)}),
        Request(prompt="a circle", output=str(tmp_path / "circle.png")),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "asked.jsonl:2 is not JSON"),
        ({"question": "why"}, "asked.jsonl:2: a request is an object with a text as prompt"),
        ({"prompt": "why", "pictures": []}, "asked.jsonl:2: a request has no pictures; it has audio, image, items"),
        ({"prompt": "what is <image>?"}, "asked.jsonl:2: .*1 <image> placeholders and 0 images"),
        ({"prompt": "what?", "image": "nowhere.png"}, "asked.jsonl:2: there is no file nowhere.png"),
        ({"prompt": "why", "items": ["a.npy"]}, "asked.jsonl:2: items is .* an object of files by field"),
        ({"prompt": "<windows>?", "items": {"windows": []}}, "asked.jsonl:2: .*1 <windows> placeholders and 0 files"),
        ({"prompt": "why", "items": {"windows": "nowhere.npy"}}, "asked.jsonl:2: there is no file nowhere.npy"),
        ({"prompt": "why", "items": {"image": PICTURE}}, "asked.jsonl:2: .*give image beside them"),
        ({"prompt": "why", "items": {"windows": PICTURE}, "output": "a.png"}, "make two requests for both"),
        ({"prompt": "why", "seed": -1}, "asked.jsonl:2: seed -1"),
        ({"prompt": "why", "output": "a.nothing"}, "asked.jsonl:2: .*suffix '.nothing'"),
    ],
)
def test_invalid_lines_are_refused_by_number(tmp_path, line, message):
    with pytest.raises(UserError, match=message):
        read_requests(written(tmp_path, {"prompt": "what?"}, line))


def test_a_file_without_requests_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no request"):
        read_requests(written(tmp_path, "", " "))
    with pytest.raises(UserError, match=r"nothing.jsonl cannot be read"):
        read_requests(tmp_path / "nothing.jsonl")
