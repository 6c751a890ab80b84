"""The shipped configuration of each format makes training batches of real files."""

import io
import json

import datasets
import gin
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from data.packing.pipeline import training_batches
from data.quarantine import Quarantine
from data.sources.array_record import write_array_record
from data.sources.llava import LlavaJson
from mmjax import cli
from mmjax.training.config import TrainConfig
from tests.data.sources.test_tar_index import tar

COUNT = 6
QUESTION = "What is shown?"
TEXTS = [f"picture {number}" for number in range(COUNT)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same pictures and texts in every format."""
    folder = tmp_path_factory.mktemp("formats")
    (folder / "images").mkdir()
    pictures = []
    for number in range(COUNT):
        file = io.BytesIO()
        Image.new("RGB", (64, 48), (40 * number, 80, 120)).save(file, "PNG")
        pictures.append(file.getvalue())
        (folder / "images" / f"{number}.png").write_bytes(pictures[-1])
    (folder / "llava.jsonl").write_text("".join(json.dumps(llava_entry(number)) + "\n" for number in range(COUNT)))
    for shard in range(2):
        members = []
        for number in range(shard, COUNT, 2):
            members += [(f"{number:06}.png", pictures[number]), (f"{number:06}.txt", TEXTS[number].encode())]
        (folder / f"shard-{shard:04}.tar").write_bytes(tar(members))
    columns = {"question": [QUESTION] * COUNT, "answer": TEXTS}
    paths = [f"{number}.png" for number in range(COUNT)]
    pyarrow.parquet.write_table(pyarrow.table({"image": paths, **columns}), folder / "table-0.parquet")
    records = LlavaJson(str(folder / "llava.jsonl"), str(folder / "images"))
    write_array_record(str(folder / "a.array_record"), records, Quarantine({records.name: COUNT}, 0.0))
    images = [str(folder / "images" / path) for path in paths]
    table = datasets.Dataset.from_dict({"image": images, **columns}).cast_column("image", datasets.Image())
    table.save_to_disk(str(folder / "saved"))
    return folder


def llava_entry(number):
    talk = [{"from": "human", "value": f"<image>\n{QUESTION}"}, {"from": "gpt", "value": TEXTS[number]}]
    return {"image": f"{number}.png", "conversations": talk}


@pytest.mark.parametrize(
    ("gin_file", "macros", "question"),
    [
        ("llava.gin", {"FILE": "llava.jsonl", "FOLDER": "images"}, QUESTION),
        ("webdataset.gin", {"FILE": "shard-{0000..0001}.tar"}, ""),
        ("parquet.gin", {"FILE": "table-*.parquet", "FOLDER": "images"}, QUESTION),
        ("array_record.gin", {"FILE": "a.array_record"}, QUESTION),
        ("hugging_face.gin", {"FOLDER": "saved"}, QUESTION),
    ],
)
def test_batches_of_a_format(folder, gin_file, macros, question):
    cli.parse_gin([gin_file], ["STEPS = 7", *(f"{name} = '{folder / path}'" for name, path in macros.items())])
    try:
        config = cli.configured(TrainConfig)
        dataset = config.dataset("train")
        batches = training_batches(config.data, config.model, dataset)
    finally:
        gin.clear_config()
    assert config.steps == 7
    seen = set()
    for _ in range(2):
        batch = next(batches)
        backbone = batch.arrays["backbone"]
        for row, segment in zip(*np.nonzero(batch.sample_ids >= 0), strict=True):
            tokens = backbone["tokens"][row][backbone["segments"][row] == segment + 1]
            seen.add(dataset.tokenizer.decode([int(token) for token in tokens]))
    batches.close()
    assert len(seen) == COUNT and batches.counters()["unreadable_samples"] == 0
    for text in TEXTS:
        assert any(question in sample and text in sample for sample in seen), seen
    # 64 x 48 pixels are 4 x 3 patches of 16, of which cells of 2 x 2 are resized to 4 x 4 or 4 x 2.
    assert batch.real_and_capacity["vision"][0] > 0
