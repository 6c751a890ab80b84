"""Data sets that the `datasets` library wrote: bytes as they are in its files, any row at any time."""

import pickle

import datasets
import pytest

from data.datasets.conversations import Conversations
from data.errors import BadSampleError, DataError
from data.packing.pipeline import training_batches
from data.records import RecordSource
from data.sources.hugging_face import HuggingFaceDataset
from tests.data.first_samples import CONFIG, ModelConfig, assert_same, take
from tests.data.sources.media import image_of, photographs, seconds_of, speech, told
from tests.data.sources.test_messages import said

COUNT = 5


def cells(count):
    china, flower = photographs()["china"], photographs()["flower"]
    return [{"bytes": flower if number % 2 else china, "path": None} for number in range(count)]


def questions(count):
    columns = {
        "image": cells(count),
        "question": [f"What is in picture {number}?" for number in range(count)],
        "answer": [f"answer {number}" for number in range(count)],
        "id": list(range(count)),
    }
    return datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "both"
    datasets.DatasetDict({"train": questions(COUNT), "test": questions(2)}).save_to_disk(str(folder))
    return str(folder)


def test_questions_about_images_at_random(saved):
    source = HuggingFaceDataset(saved, image="image")
    assert isinstance(source, RecordSource) and len(source) == COUNT
    assert len(HuggingFaceDataset(saved, "test", image="image")) == 2
    for number in (3, 0, 4, 1, 2, 3):
        record = source[number]
        assert record.key == f"{saved}[train][{number}]"
        asked, answered = f"What is in picture {number}?", f"answer {number}"
        assert told(record) == [("user", ["<ImagePart>", asked]), ("assistant", [answered])]
        assert record.turns[0].parts[0].media.read() == cells(COUNT)[number]["bytes"]
    assert image_of(source[0].turns[0].parts[0]).size == (64, 43)
    assert pickle.loads(pickle.dumps(source))[3] == source[3]
    with pytest.raises(IndexError):
        source[COUNT]


def test_a_single_split_and_a_folder_of_files_are_loaded(saved, tmp_path):
    questions(3).save_to_disk(str(tmp_path / "one"))
    assert len(HuggingFaceDataset(str(tmp_path / "one"))) == 3
    (tmp_path / "files").mkdir()
    questions(4).to_parquet(str(tmp_path / "files" / "train-00000.parquet"))
    source = HuggingFaceDataset(str(tmp_path / "files"), "train[1:]", image="image")
    assert [told(source[number])[1][1] for number in range(3)] == [["answer 1"], ["answer 2"], ["answer 3"]]
    assert source[0].turns == HuggingFaceDataset(saved, image="image")[1].turns or source[0].key


def test_conversations_with_lists_of_images_and_clips(tmp_path):
    clip, transcript = next(iter(speech().values()))
    columns = {
        "messages": [said(("human", "<image>\n<image>\nCompare."), ("gpt", "Roofs; petals."))],
        "images": [cells(2)],
        "clip": [{"bytes": clip, "path": "a.flac"}],
        "text": [transcript],
    }
    # An Audio column has this struct in its files; making one with the library needs torch.
    table = datasets.Dataset.from_dict(columns).cast_column("images", datasets.List(datasets.Image()))
    table.save_to_disk(str(tmp_path / "d"))
    talk = HuggingFaceDataset(str(tmp_path / "d"), task="converse", text="messages", image="images")
    assert told(talk[0])[0] == ("user", ["<ImagePart>", "\n", "<ImagePart>", "\nCompare."])
    spoken = HuggingFaceDataset(str(tmp_path / "d"), task="transcribe", audio="clip")
    assert told(spoken[0]) == [("user", ["<AudioPart>"]), ("assistant", [transcript])]
    assert seconds_of(spoken[0].turns[0].parts[0]) > 1


def test_batches_and_their_state_are_exact(saved):
    records = HuggingFaceDataset(saved, image="image")
    dataset = Conversations(split="train", train=(("table", records),))
    plain = ModelConfig()
    model = ModelConfig(plain.encoders, plain.backbone.__class__(vocabulary=267), ())
    config = CONFIG.__class__(rows=2, tokens=256, patches=128, images=0, window=4, seed=1)
    iterator = training_batches(config, model, dataset)
    take(iterator, 2)
    state = iterator.get_state()
    expected = take(iterator, 3)
    iterator.close()
    restored = training_batches(config, model, pickle.loads(pickle.dumps(dataset)))
    restored.set_state(state)
    assert_same(expected, take(restored, 3))
    restored.close()


def test_a_path_outside_the_data_set_is_a_bad_sample(tmp_path):
    columns = {"image": ["../secret.png", "a.png"], "question": ["?", "?"], "answer": ["a", "b"]}
    datasets.Dataset.from_dict(columns).save_to_disk(str(tmp_path / "d"))
    source = HuggingFaceDataset(str(tmp_path / "d"), image="image")
    with pytest.raises(BadSampleError, match=r"\[train\]\[0\] cannot be read .*secret\.png' leads out of the folder"):
        source[0]
    assert source[1].turns


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"split": "validation"}, "has no split 'validation'; it has train, test"),
        ({"image": "picture"}, "has no column picture; it has image, question, answer, id"),
        ({"task": "draw"}, "HuggingFaceDataset.task is 'draw'; choose one of describe"),
        ({"path": "{home}/none"}, "path '.*none', split 'train' cannot be loaded"),
    ],
)
def test_unusable_data_sets_are_refused_at_the_start(saved, tmp_path, arguments, reason):
    arguments = {"path": saved} | arguments
    with pytest.raises(DataError, match=reason) as caught:
        HuggingFaceDataset(**arguments | {"path": arguments["path"].format(home=tmp_path)})
    assert "\n" not in str(caught.value)
