import concurrent.futures
import io
import json
import pickle

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data.errors import BadSampleError, DataError
from data.media.clips.video import read_header
from data.media.images import image_size
from data.media.sound.audio import audio_length
from data.records import RecordSource
from data.sources.webdataset import WebDataset
from tests.data.sources.media import image_of, photographs, seconds_of, speech, told
from tests.data.sources.test_tar_index import tar


def write(folder, name, members):
    (folder / name).write_bytes(tar(members))
    return str(folder / name)


def laion(number, picture, caption):
    """The three members of a sample as LAION's downloader writes them."""
    key = f"{number:09}"
    about = json.dumps({"caption": f"{caption} (json)", "url": "u", "key": key, "status": "success"})
    return [(f"{key}.jpg", picture), (f"{key}.json", about.encode()), (f"{key}.txt", caption.encode())]


@pytest.fixture
def shards(tmp_path):
    china, flower = photographs()["china"], photographs()["flower"]
    write(tmp_path, "s-00000.tar", laion(0, china, "A temple.\n") + laion(1, flower, "Ein Blümchen."))
    write(tmp_path, "s-00001.tar", laion(10_000, china, "Roofs."))
    return tmp_path


def reasons(source):
    reason_of = {}
    for index in range(len(source)):
        try:
            assert source[index].turns
        except BadSampleError as error:
            reason_of[error.where.rpartition(":")[2]] = error.reason
    return reason_of


def test_layout_of_laion(shards):
    source = WebDataset(f"{shards}/s-{{00000..00001}}.tar")
    assert isinstance(source, RecordSource)
    assert [told(source[index]) for index in range(len(source))] == [
        [("user", ["<ImagePart>"]), ("assistant", [caption])] for caption in ("A temple.", "Ein Blümchen.", "Roofs.")
    ]
    assert source[2].key == f"{shards}/s-00001.tar:000010000"
    assert source[1].turns[0].parts[0].media.read() == photographs()["flower"]
    assert image_of(source[1].turns[0].parts[0]).size == (64, 43)
    assert pickle.loads(pickle.dumps(source))[2] == source[2]


def test_generation_task(shards):
    source = WebDataset(f"{shards}/s-*.tar", task="generate")
    assert told(source[0]) == [("user", ["A temple."]), ("assistant", ["<ImagePart>"])]


def test_clips_to_transcribe(tmp_path):
    members = []
    for key, (clip, sentence) in speech().items():
        members += [(f"{key}.flac", clip), (f"{key}.txt", sentence.encode())]
    source = WebDataset(write(tmp_path, "a.tar", members), task="transcribe")
    assert len(source) == 5
    assert told(source[1]) == [("user", ["<AudioPart>"]), ("assistant", ["he was not an ill disposed young man"])]
    assert seconds_of(source[1].turns[0].parts[0]) == pytest.approx(2.99)


@pytest.mark.parametrize(
    ("suffix", "form", "subtype"),
    [("mp3", "MP3", "MPEG_LAYER_III"), ("ogg", "OGG", "VORBIS"), ("opus", "OGG", "OPUS"), ("OGA", "OGG", "VORBIS")],
)
def test_clips_of_every_format_that_is_decoded(tmp_path, suffix, form, subtype):
    file = io.BytesIO()
    soundfile.write(file, np.zeros(8000, np.float32), 16_000, format=form, subtype=subtype)
    members = [(f"a.{suffix}", file.getvalue()), ("a.txt", b"silence")]
    source = WebDataset(write(tmp_path, "a.tar", members), task="transcribe")
    assert told(source[0]) == [("user", ["<AudioPart>"]), ("assistant", ["silence"])]
    assert audio_length(source[0].turns[0].parts[0].media) == 8000


def test_animations_are_pictures_or_clips_as_the_task_says(tmp_path):
    file = io.BytesIO()
    frames = [Image.new("RGB", (48, 32), (90 * number,) * 3) for number in range(3)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=500)
    shard = write(tmp_path, "a.tar", [("a.gif", file.getvalue()), ("a.txt", b"it brightens")])
    assert image_size(WebDataset(shard)[0].turns[0].parts[0].media) == (32, 48)
    assert read_header(WebDataset(shard, task="describe_video")[0].turns[0].parts[0].media).frames == 3


def test_members_of_a_key_need_not_be_adjacent_and_others_are_skipped(tmp_path):
    members = [
        *[("./", "5"), ("._a.jpg", b"junk"), ("README", b"junk"), ("a.b/x.JPG", b"1"), ("y.seg.png", b"2")],
        *[("y.png", b"3"), ("a.b/x.txt", b"x"), ("y.json", b'{"caption": "y"}'), ("y.cls", b"7")],
    ]
    source = WebDataset(write(tmp_path, "a.tar", members))
    assert [(record.key.rpartition(":")[2], told(record)[1][1]) for record in (source[0], source[1])] == [
        ("a.b/x", ["x"]),
        ("y", ["y"]),
    ]
    assert source[1].turns[0].parts[0].media.read() == b"3"


def test_unusable_samples_give_the_reason(tmp_path):
    members = [
        *[("good.jpg", b"1"), ("good.txt", b"x"), ("lone.jpg", b"1"), ("bare.txt", b"x"), ("twice.jpg", b"1")],
        *[("twice.txt", b"x"), ("twice.jpg", b"2"), ("both.jpg", b"1"), ("both.png", b"1"), ("both.txt", b"x")],
        *[("none.jpg", b""), ("none.txt", b"x"), ("blank.jpg", b"1"), ("blank.txt", b" \n"), ("latin.jpg", b"1")],
        *[("latin.txt", b"caf\xe9"), ("list.jpg", b"1"), ("list.json", b"[]"), ("torn.jpg", b"1"), ("torn.json", b"{")],
        *[("null.jpg", b"1"), ("null.json", b'{"caption": null}')],
    ]
    source = WebDataset(write(tmp_path, "a.tar", members))
    assert len(source) == 11
    assert reasons(source) == {
        "lone": "it has no txt or json",
        "bare": "it has no jpg or jpeg or png or webp or gif or bmp or tif or tiff or ppm or pgm or jp2",
        "twice": "it has two members of suffix jpg: the key is there twice",
        "both": "it has 2 media (jpg, png) where one is expected",
        "none": "its jpg is empty",
        "blank": "the text is empty",
        "latin": "it is not UTF-8 from byte 3 on",
        "list": "caption in the json is not a text: None",
        "torn": "it is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "null": "caption in the json is not a text: None",
    }


def test_truncated_tars_give_their_complete_samples(tmp_path):
    members = [member for key in "abc" for member in ((f"{key}.jpg", b"j" * 900), (f"{key}.txt", b"text"))]
    whole = tar(members)
    sample = 512 + 1024 + 512 + 512
    for kept, bad in (
        (2 * sample + 100, {"(the rest)": f"the file is truncated at byte {2 * sample + 100}; the rest is lost"}),
        (2 * sample + 900, {"c": f"the file is truncated at byte {2 * sample + 900}, within this sample"}),
        (3 * sample - 1024, {"c": f"it has no txt or json; the file is truncated at byte {3 * sample - 1024}"}),
        (3 * sample - 510, {"c": f"the file is truncated at byte {3 * sample - 510}, within this sample"}),
    ):
        (tmp_path / "a.tar").write_bytes(whole[:kept])
        source = WebDataset(str(tmp_path / "a.tar"))
        refused = reasons(source)
        assert {key: refused[key] for key in bad} == bad
        assert len(source) - len(refused) == 2


def test_a_tar_truncated_after_indexing(shards):
    source = WebDataset(f"{shards}/s-00000.tar")
    path = shards / "s-00000.tar"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(BadSampleError, match="the file is truncated"):
        source[0]
    path.unlink()
    with pytest.raises(BadSampleError, match="No such file"):
        source[0]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"shards": "{home}/s-{00000..00002}.tar"}, "s-00002.tar' does not exist"),
        ({"shards": "{home}/t-*.tar"}, "no file matches"),
        ({"shards": "{home}"}, "is a folder"),
        ({"shards": "{home}/s-*.tar", "task": "draw"}, "WebDataset.task is 'draw'; choose one of describe"),
        ({"shards": "{home}/zero.tar"}, "is empty"),
        ({"shards": "{home}/nothing.tar"}, "hold no samples"),
        ({"shards": "{home}/text.tar"}, "not a tar"),
    ],
)
def test_invalid_sources_are_refused_at_the_start(shards, arguments, reason):
    (shards / "zero.tar").touch()
    (shards / "text.tar").write_text("x" * 1000)
    write(shards, "nothing.tar", [])
    arguments["shards"] = arguments["shards"].replace("{home}", str(shards))
    with pytest.raises(DataError, match=reason):
        WebDataset(**arguments)


def test_threads_may_share_it(shards):
    source = WebDataset(f"{shards}/s-*.tar")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        records = list(
            pool.map(lambda index: (source[index], source[index].turns[0].parts[0].media.read()), [0, 1, 2] * 20)
        )
    assert records == records[:3] * 20


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_damaged_shard_gives_records_or_data_errors(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    content = bytearray(tar(laion(0, b"j" * 600, "A temple.") + [("b.png", b"p"), ("b.json", b'{"caption": "b"}')]))
    for _ in range(data.draw(st.integers(0, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "any.tar").write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        source = WebDataset(str(folder / "any.tar"))
    except DataError:
        return
    assert all(reason for reason in reasons(source).values())
