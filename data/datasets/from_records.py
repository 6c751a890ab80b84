"""Data sets from Python: dictionaries of images, questions and answers, without a file format.

`mmjax.from_records` is this function; it makes `Conversations` of a `RecordList`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from data.datasets.conversations import Conversations
from data.media.tilings.tiling import ImageTiling
from data.sources.record_list import IndexedDictionaries, RecordList
from data.text.byte_tokenizer import ByteTokenizer
from data.text.image_layout import ImageLayout
from data.text.tokenizer import Tokenizer
from data.text.video_layout import VideoLayout

_BYTES = ByteTokenizer()
_IN_RASTER_ORDER = ImageLayout()
_ONE_AFTER_ANOTHER = VideoLayout()


def from_records(
    records: IndexedDictionaries | Iterable[Mapping[str, Any]],
    *,
    folder: str = "",
    tokenizer: Tokenizer = _BYTES,
    template: str = "question",
    tiling: ImageTiling | None = None,
    images: ImageLayout = _IN_RASTER_ORDER,
    video: VideoLayout = _ONE_AFTER_ANOTHER,
    kind: str = "records",
) -> Conversations:
    """A data set (`data.datasets.dataset.Dataset`) of dictionaries `{"image": ..., "question": ..., "answer": ...}`.

    An image is a path, the bytes of a file, a PIL image or an array of uint8, `audio` and `video` a path or the bytes
    of a file; `data.sources.record_list.RecordList` describes all fields. In a configuration, a function of the split
    returns it:

        def my_data(split):
            return from_records(train_records if split == "train" else test_records)

        TrainConfig(dataset=my_data, ...)        # in gin: config.TrainConfig.dataset = @my_file.my_data

    Args:
        records: The dictionaries. A sequence is read at random, whenever a sample is used, and may make its
            dictionaries then; anything else, such as a generator, is read to its end at once.
        folder: Folder to which paths are relative; the current one by default.
        tokenizer: Encodes the texts.
        template: Name of a chat template; see `Conversations`.
        tiling: How an image becomes encoder images; see `Conversations`.
        images: How the tokens of an image are laid out.
        video: How the frames of a video clip are chosen and laid out.
        kind: Kind of the samples, for `DataConfig.mixture`.
    """
    listed = records if isinstance(records, IndexedDictionaries) else list(records)
    sources = ((kind, RecordList(listed, folder, kind)),) if len(listed) else ()
    return Conversations(
        split="train",
        train=sources,
        tokenizer=tokenizer,
        template=template,
        tiling=tiling,
        images=images,
        video=video,
    )
