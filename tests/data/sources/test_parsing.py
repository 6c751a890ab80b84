"""Paths of media stay within their folder, whichever source names them; what leaves it is an unusable sample."""

import json

import datasets
import datasets.config
import pyarrow
import pyarrow.parquet
import pytest

from data.datasets.conversations import Conversations
from data.errors import BadSampleError
from data.packing.pipeline import training_batches
from data.sources.hugging_face import HuggingFaceDataset
from data.sources.llava import LlavaJson
from data.sources.parquet import ParquetTable
from data.sources.parsing import media_from_path
from data.sources.webdataset import WebDataset
from tests.data.first_samples import CONFIG, ModelConfig
from tests.data.sources.media import photographs
from tests.data.sources.test_messages import said
from tests.data.sources.test_tar_index import tar


@pytest.fixture
def folder(tmp_path):
    """A folder of images next to an image that is not part of it."""
    (tmp_path / "images" / "sub").mkdir(parents=True)
    for path in ("secret.jpg", "images/a.jpg", "images/sub/b.jpg"):
        (tmp_path / path).write_bytes(photographs()["china"])
    return tmp_path / "images"


@pytest.mark.parametrize(
    "path", ["a.jpg", "sub/b.jpg", "./sub/../a.jpg", "sub//b.jpg", "{folder}/sub/b.jpg", "{folder}/sub/../a.jpg"]
)
def test_paths_within_the_folder_are_read(folder, path):
    assert media_from_path("r", str(folder), path.format(folder=folder)).read() == photographs()["china"]


@pytest.mark.parametrize(
    "path",
    [
        "../secret.jpg",
        "sub/../../secret.jpg",
        "/etc/passwd",
        "{folder}/../secret.jpg",
        "{folder}x/a.jpg",
        "..",
        "link/../..",
    ],
)
def test_paths_that_leave_the_folder_are_refused_in_one_line(folder, path):
    path = path.format(folder=folder)
    with pytest.raises(BadSampleError) as caught:
        media_from_path("data.json[3]", str(folder), path)
    message = str(caught.value)
    assert message.startswith("data.json[3] cannot be read (the path ") and "\n" not in message
    assert f"leads out of the folder {folder}" in message


def test_links_of_the_folder_are_followed_but_not_out_of_their_target(folder, tmp_path):
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "deep" / "c.jpg").write_bytes(photographs()["flower"])
    (tmp_path / "elsewhere" / "a.jpg").write_bytes(b"not this one")
    (folder / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    assert media_from_path("r", str(folder), "link/c.jpg").read() == photographs()["flower"]
    # The system would open elsewhere/a.jpg.
    assert media_from_path("r", str(folder), "link/../a.jpg").read() == photographs()["china"]


@pytest.mark.parametrize(
    "named, entered", [("real", "link"), ("link", "real"), ("way/images", "link"), ("link", "link")]
)
def test_a_folder_reached_through_a_link_is_that_folder(folder, tmp_path, named, entered):
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "way").symlink_to(tmp_path)  # a link further up
    named = {"real": folder}.get(named, tmp_path / named)
    entered = {"real": folder}.get(entered, tmp_path / entered)
    assert media_from_path("r", str(entered), str(named / "sub" / "b.jpg")).read() == photographs()["china"]
    for secret in (named / ".." / "secret.jpg", tmp_path / "way" / "secret.jpg"):
        with pytest.raises(BadSampleError, match="leads out of the folder"):
            media_from_path("r", str(entered), str(secret))


def test_llava_and_image_folders_behind_a_link_are_read(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "link").symlink_to(folder)
    entry = {"image": str(folder / "a.jpg"), "conversations": said(("human", "What is it?"), ("gpt", "A temple."))}
    (tmp_path / "link" / "a.json").write_text(json.dumps([entry]))
    (part, *_) = LlavaJson(str(tmp_path / "link" / "a.json"))[0].turns[0].parts
    assert part.media.read() == photographs()["china"]
    (folder / "a.json").unlink()
    (folder / "sub" / "b.jpg").unlink()
    (folder / "metadata.jsonl").write_text(json.dumps({"file_name": "a.jpg", "text": "A temple."}))
    source = HuggingFaceDataset(str(tmp_path / "link"), task="describe")
    assert source[0].turns[0].parts[0].media.read() == photographs()["china"]


def test_tables_and_conversations_refuse_such_paths(folder):
    entry = {"image": "../secret.jpg", "conversations": said(("human", "What is it?"), ("gpt", "A temple."))}
    (folder / "a.json").write_text(json.dumps([entry]))
    with pytest.raises(
        BadSampleError, match=r"a\.json\[0\] cannot be read .*'\.\./secret\.jpg' leads out of the folder"
    ):
        LlavaJson(str(folder / "a.json"))[0]
    path = str(folder / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"image": ["../secret.jpg", "a.jpg"], "text": ["x", "y"]}), path)
    with pytest.raises(BadSampleError, match=r"a\.parquet\[0\] cannot be read .* leads out of the folder"):
        ParquetTable(path)[0]
    assert ParquetTable(path)[1].turns
    (folder / "sub" / "a.jpg").write_bytes(photographs()["flower"])
    elsewhere = ParquetTable(path, folder=str(folder / "sub"))
    assert elsewhere[1].turns[0].parts[0].media.read() == photographs()["flower"]


def test_names_of_members_of_a_shard_open_no_file(folder):
    members = [("../secret.jpg", photographs()["flower"]), ("../secret.txt", b"petals")]
    (folder / "a.tar").write_bytes(tar(members))
    record = WebDataset(str(folder / "a.tar"))[0]
    assert record.turns[0].parts[0].media.read() == photographs()["flower"]


def test_such_a_sample_is_counted_as_refused(folder):
    talk = said(("human", "What is it?"), ("gpt", "A temple."))
    entries = [{"image": "../secret.jpg" if n == 3 else "a.jpg", "conversations": talk} for n in range(8)]
    (folder / "a.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    dataset = Conversations(split="train", train=(("llava", LlavaJson(str(folder / "a.jsonl"))),))
    plain = ModelConfig()
    model = ModelConfig(plain.encoders, plain.backbone.__class__(vocabulary=267), ())
    config = CONFIG.__class__(rows=2, images=0, max_refused_share=0.2)
    batches = training_batches(config, model, dataset)
    batches.list_refused_in(folder / "run")
    next(batches)
    batches.close()
    (line,) = (folder / "run" / "unreadable.jsonl").read_text().splitlines()
    assert json.loads(line)["key"] == "a.jsonl:4" and batches.counters()["unreadable_samples"] == 1
