import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import BadSampleError, DataError
from data.records import Media, RecordSource, TextPart, Turn, VideoPart
from data.sources.json_index import index_json_array, index_json_lines
from data.sources.llava import LlavaJson
from tests.data.sources.media import image_of, photographs, told
from tests.data.sources.test_messages import json_values, said

TEXT_ONLY = {"id": "t", "conversations": said(("human", "Who are you?"), ("gpt", "Nobody – ☃.\n"))}
TWO = {
    "id": "2",
    "image": ["china.jpg", "sub/flower.jpg"],
    "conversations": said(("human", "<image>\n<image>\nCompare."), ("gpt", "Roofs; petals.")),
}
ONE = {"id": 7, "image": "china.jpg", "conversations": said(("human", "What is it?\n<image>"), ("gpt", "A temple."))}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "china.jpg").write_bytes(photographs()["china"])
    (tmp_path / "sub" / "flower.jpg").write_bytes(photographs()["flower"])
    return tmp_path


def written(folder, text, name="a.json"):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(folder / name)


WRITERS = {
    "array": json.dumps,
    "indented array": lambda entries: " \n" + json.dumps(entries, indent=2, ensure_ascii=False) + "\n",
    "lines": lambda entries: "".join(json.dumps(entry) + "\n" for entry in entries),
    "lines with blanks": lambda entries: "\n\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries),
    "marked lines": lambda entries: "\ufeff" + "\r\n".join(map(json.dumps, entries)),
    "marked array": lambda entries: "\ufeff" + json.dumps(entries, ensure_ascii=False),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_arrays_and_lines_are_read_alike(folder, writer):
    source = LlavaJson(written(folder, writer([TEXT_ONLY, TWO, ONE])))
    assert isinstance(source, RecordSource)
    assert len(source) == 3
    assert told(source[0]) == [("user", ["Who are you?"]), ("assistant", ["Nobody – ☃.\n"])]
    assert told(source[1])[0] == ("user", ["<ImagePart>", "\n", "<ImagePart>", "\nCompare."])
    assert told(source[2])[0] == ("user", ["What is it?\n", "<ImagePart>"])
    assert image_of(source[1].turns[0].parts[2]).size == (64, 43)
    assert pickle.loads(pickle.dumps(source))[1] == source[1]
    with pytest.raises(IndexError):
        source[3]


def test_keys_name_the_entry_or_the_line(folder):
    assert LlavaJson(written(folder, json.dumps([ONE, TWO])))[1].key == "a.json[1]"
    lines = LlavaJson(written(folder, f"\n{json.dumps(ONE)}\n\n{json.dumps(TWO)}", "b.jsonl"), name="own")
    assert [lines[0].key, lines[1].key] == ["b.jsonl:2", "b.jsonl:4"]
    assert lines.name == "own"


def test_paths_are_relative_to_the_folder_given(folder, tmp_path_factory):
    path = written(tmp_path_factory.mktemp("elsewhere"), json.dumps([ONE]))
    assert image_of(LlavaJson(path, str(folder))[0].turns[0].parts[1]).size == (64, 43)
    with pytest.raises(BadSampleError, match=r"china\.jpg cannot be read \(No such file"):
        LlavaJson(path)[0].turns[0].parts[1].media.read()


def test_audio_files_are_read(folder):
    entry = {"audio": "a.wav", "conversations": said(("human", "<audio>\nWhat is said?"), ("gpt", "Ten of clubs."))}
    assert told(LlavaJson(written(folder, json.dumps([entry])))[0])[0] == ("user", ["<AudioPart>", "\nWhat is said?"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": ', "it is not JSON"),
        (b"[1]", "the entry is not an object"),
        (b"\xff\xfe", "not UTF-8 from byte 0"),
        (b"[" * 100_000, "cannot be parsed"),
        (b"1" * 10_000, "cannot be parsed"),
        (json.dumps(ONE | {"image": 5}).encode(), "path of a file is not a text: 5"),
        (json.dumps(ONE | {"image": "a\0b"}).encode(), "null character"),
        (json.dumps(ONE | {"image": "\ud800"}).encode(), "surrogate"),
        (json.dumps(ONE | {"image": {"a": 1}}).encode(), "path of a file is not a text"),
        (json.dumps(ONE | {"image": None}).encode(), "1 <image> placeholders for 0 files"),
        (json.dumps(ONE | {"image": None, "video": ["a.mp4", "b.mp4"]}).encode(), "1 <image> placeholders for 2 files"),
    ],
)
def test_invalid_lines_are_bad_samples(folder, line, reason):
    good = json.dumps(ONE).encode()
    source = LlavaJson(written(folder, b"\n".join([good, line, good]), "a.jsonl"))
    assert len(source) == 3
    assert source[0].turns == source[2].turns
    with pytest.raises(BadSampleError, match=reason) as caught:
        source[1]
    assert caught.value.where == "a.jsonl:2"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'[{"a": 1},\n\n{"b": }]', r"line 3: not a JSON array \(Expecting value, column 7"),
        (b'[{"a": 1}\n{"b": 2}]', "line 2: not a JSON array .*Expecting ','"),
        (b'[{"a": 1}', "line 1: not a JSON array"),
        (b"[1,]", "line 1"),
        (b"[1]\n2", r"line 2.*Something follows|Something follows"),
        (b'["a",\n"\xff"]', "line 2: not UTF-8"),
        (b"[" + b"[" * 100_000, "cannot be parsed"),
        (b"[" + b"1" * 10_000 + b"]", "cannot be parsed"),
        (b"[ ]", "has no entries"),
        (b" \n ", "has no entries"),
        (b"", "is empty"),
    ],
)
def test_malformed_arrays_are_refused_at_the_start(folder, content, reason):
    with pytest.raises(DataError, match=reason):
        LlavaJson(written(folder, content))


def test_missing_files_are_refused_at_the_start(folder):
    with pytest.raises(DataError, match="gone.json' does not exist"):
        LlavaJson(str(folder / "gone.json"))
    with pytest.raises(DataError, match="is a folder where a file is expected"):
        LlavaJson(str(folder))
    with pytest.raises(DataError, match="gone' is not a folder"):
        LlavaJson(written(folder, json.dumps([ONE])), str(folder / "gone"))


def read_all(path):
    """Reads whatever can be read; only the errors that tell of bad data may come."""
    try:
        source = LlavaJson(path)
    except DataError:
        return
    for index in range(len(source)):
        try:
            assert source[index].key
        except BadSampleError as error:
            assert error.reason


fields = st.sampled_from(["image", "audio", "conversations", "from", "value", "id"])
entries = st.lists(
    json_values | st.dictionaries(fields, json_values | st.lists(st.dictionaries(fields, json_values)), max_size=4),
    max_size=4,
)


@given(content=st.binary(max_size=60) | st.text('[]{},:"\\ \n19aé\ufeff', max_size=30).map(str.encode))
@settings(max_examples=50, deadline=None)
def test_any_bytes_give_records_or_data_errors(tmp_path_factory, content):
    read_all(written(tmp_path_factory.getbasetemp(), content, "any.json"))


@given(values=entries, writer=st.sampled_from(list(WRITERS.values())))
@settings(max_examples=50, deadline=None)
def test_any_json_gives_records_or_data_errors(tmp_path_factory, values, writer):
    content = writer(values).encode("utf-8", "surrogatepass")
    path = written(tmp_path_factory.getbasetemp(), content, "any.json")
    read_all(path)


@given(
    values=st.lists(st.dictionaries(fields, st.text(max_size=5), min_size=1), min_size=1, max_size=5), data=st.data()
)
def test_the_index_finds_every_entry(tmp_path_factory, values, data):
    text = data.draw(st.sampled_from(list(WRITERS.values())))(values)
    path = written(tmp_path_factory.getbasetemp(), text.encode("utf-8", "backslashreplace"), "any.json")
    content = (tmp_path_factory.getbasetemp() / "any.json").read_bytes()
    index = index_json_array(path) if text.lstrip("\ufeff \n").startswith("[") else index_json_lines(path)
    assert [json.loads(content[at : at + size].decode("utf-8-sig")) for at, size, _ in index] == values
    assert [content.count(b"\n", 0, at) + 1 for at, _, _ in index] == index[:, 2].tolist()


@pytest.mark.parametrize("placeholder", ["<video>", "<image>"])
def test_video_files_are_read_whichever_placeholder_stands_for_them(folder, placeholder):
    entry = {"video": "v.mp4", "conversations": said(("human", f"{placeholder}\nWhat happens?"), ("gpt", "It rains."))}
    turn = LlavaJson(written(folder, json.dumps([entry])))[0].turns[0]
    assert turn == Turn("user", (VideoPart(Media.from_file(str(folder / "v.mp4"))), TextPart("\nWhat happens?")))


ASKED = {"conversations": said(("human", "What is it?"), ("gpt", "A temple."))}


@pytest.mark.parametrize(
    "keys",
    [
        {"images": ["china.jpg"]},
        {"images": "china.jpg", "image": None},
        {"image_path": "china.jpg"},
        {"image_paths": ["china.jpg"], "image_id": "000123", "image_size": [64, 43]},
        {"image_file": "china.jpg", "source": "http://a.org/b.jpg", "image_source": "coco"},
    ],
)
def test_images_under_other_keys_without_a_placeholder_are_read(folder, keys):
    record = LlavaJson(written(folder, json.dumps([ASKED | keys])))[0]
    assert told(record)[0] == ("user", ["<ImagePart>", "What is it?"])
    assert image_of(record.turns[0].parts[0]).size == (64, 43)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("img", "china.jpg"),
        ("imageUrl", "https://a.org/1"),
        ("image_base64", "iVBORw0KGgo="),
        ("pictures", ["china.jpg"]),
        ("image_2", "china.jpg"),
        ("frames", ["1.jpg", "2.jpg"]),
        ("media", [{"path": "china.jpg"}]),
        ("file_name", "china.jpg"),
        ("attachment", {"files": ["a/b c.txt", "a.mp4"]}),
        ("first_image_of_two", "china.jpg"),
    ],
)
def test_keys_that_name_media_and_are_not_read_are_refused(folder, key, value):
    source = LlavaJson(written(folder, json.dumps([ASKED | {key: value}])))
    with pytest.raises(BadSampleError, match=f"it has '{key}', which names media and is not read"):
        source[0]


def test_an_image_under_two_keys_is_refused(folder):
    source = LlavaJson(written(folder, json.dumps([ASKED | {"image": "china.jpg", "images": ["sub/flower.jpg"]}])))
    with pytest.raises(BadSampleError, match="it has both 'image' and 'images'; keep one"):
        source[0]


def test_text_only_conversations_may_have_other_keys(folder):
    keys = {"id": "a/1.jpg", "has_image": False, "image": "", "images": [], "n_frames": 0, "caption": "A cat.png is it"}
    record = LlavaJson(written(folder, json.dumps([ASKED | keys])))[0]
    assert told(record)[0] == ("user", ["What is it?"])


@pytest.mark.parametrize("picture", ["data:image/png;base64," + "iVBORw0K" * 250_000, ["A" * 2_000_000]])
def test_a_picture_in_base64_is_refused_in_a_short_line(folder, picture):
    with pytest.raises(BadSampleError, match=r"path of a file has 2000\d\d\d characters.*write it to a file") as caught:
        LlavaJson(written(folder, json.dumps([ASKED | {"image": picture}])))[0]
    assert len(str(caught.value)) <= 500
