"""Write the pictures of examples/files in the other formats that mmjax reads, to the folder formats/.

    python examples/other_formats.py

It needs the extras `parquet` and `huggingface`.
"""

import io
import json
import pathlib
import tarfile

import datasets
import pyarrow
import pyarrow.parquet

from data.quarantine import Quarantine
from data.sources.array_record import write_array_record
from data.sources.llava import LlavaJson

FILES = pathlib.Path(__file__).parent / "files"
IMAGES = FILES / "images"


def main() -> None:
    """Writes a WebDataset shard, a Parquet table, an ArrayRecord file and a saved data set."""
    folder = pathlib.Path("formats")
    folder.mkdir(exist_ok=True)
    entries = json.loads((FILES / "llava.json").read_text())
    questions = ["what color is the shape?" for _ in entries]
    answers = [entry["conversations"][1]["value"] for entry in entries]

    # A WebDataset shard: 0000.png and its caption 0000.txt, and so on.
    with tarfile.open(folder / "shard-0000.tar", "w") as shard:
        for index, entry in enumerate(entries):
            picture, caption = (IMAGES / entry["image"]).read_bytes(), "a " + entry["id"].replace("_", " ")
            for suffix, content in (("png", picture), ("txt", caption.encode())):
                member = tarfile.TarInfo(f"{index:04}.{suffix}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))

    # A Parquet table: images are paths within a folder, or structs of bytes and path as below.
    paths = [entry["image"] for entry in entries]
    table = pyarrow.table({"image": paths, "question": questions, "answer": answers})
    pyarrow.parquet.write_table(table, folder / "table-0000.parquet", row_group_size=2)

    # An ArrayRecord file, of any other source.
    source = LlavaJson(str(FILES / "llava.json"), str(IMAGES))
    quarantine = Quarantine({source.name: len(source)}, max_share=None)
    write_array_record(str(folder / "data-0000.array_record"), source, quarantine)

    # A data set of the library `datasets`.
    images = [{"bytes": (IMAGES / path).read_bytes(), "path": path} for path in paths]
    saved = datasets.Dataset.from_dict({"image": images, "question": questions, "answer": answers})
    saved.cast_column("image", datasets.Image()).save_to_disk(str(folder / "saved_data_set"))


if __name__ == "__main__":
    main()
