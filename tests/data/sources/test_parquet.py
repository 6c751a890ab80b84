import concurrent.futures
import pickle

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import BadSampleError, DataError
from data.records import RecordSource
from data.sources.parquet import ParquetTable
from tests.data.damage import count_readable, damage_file
from tests.data.sources.media import image_of, photographs, seconds_of, speech, told
from tests.data.sources.test_messages import said

MEDIUM = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})


def write(path, row_group_size=2, **columns):
    """A Parquet file of columns: a list of values, or one with its Arrow type."""
    arrays = {
        name: pyarrow.array(*column) if isinstance(column, tuple) else pyarrow.array(column)
        for name, column in columns.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), path, row_group_size=row_group_size)
    return str(path)


def pictures(count):
    """Cells as the datasets library writes them."""
    china, flower = photographs()["china"], photographs()["flower"]
    return [{"bytes": flower if number % 2 else china, "path": f"{number}.jpg"} for number in range(count)], MEDIUM


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "t-0.parquet", image=pictures(5), text=[f"text {n}" for n in range(5)], other=[1.0] * 5)


def test_pairs_of_pictures_and_texts(table, tmp_path):
    write(tmp_path / "t-1.parquet", image=pictures(3), text=["x", "y", "z"])
    source = ParquetTable(f"{tmp_path}/t-{{0..1}}.parquet", cached_row_groups=1)
    assert isinstance(source, RecordSource)
    assert len(source) == 8
    answers = [told(source[index])[1][1] for index in range(8)]
    assert answers == [["text 0"], ["text 1"], ["text 2"], ["text 3"], ["text 4"], ["x"], ["y"], ["z"]]
    assert source[4].key == f"{table}[4]"
    assert source[7].key == f"{tmp_path}/t-1.parquet[2]"
    picture = source[6].turns[0].parts[0]
    assert image_of(picture).size == (64, 43)
    assert picture.media.read() == photographs()["flower"]
    assert picture.media.where == f"{tmp_path}/t-1.parquet[1].image (1.jpg)"
    assert pickle.loads(pickle.dumps(source))[6] == source[6]
    with pytest.raises(IndexError):
        source[8]


def test_pickled_copies_contain_no_rows(table):
    source = ParquetTable(table)
    fresh = len(pickle.dumps(source))
    assert source[0].turns
    assert len(pickle.dumps(source)) == fresh


def test_columns_and_tasks_are_configurable(tmp_path):
    path = write(tmp_path / "a.parquet", jpg=[photographs()["china"]], caption=["A temple."])
    source = ParquetTable(path, task="generate", image="jpg", text="caption", name="own")
    assert source.name == "own"
    assert told(source[0]) == [("user", ["A temple."]), ("assistant", ["<ImagePart>"])]
    assert image_of(source[0].turns[1].parts[0]).size == (64, 43)


def test_clips_to_transcribe(tmp_path):
    spoken = speech().values()
    audio = [{"bytes": clip, "path": "a.flac"} for clip, _ in spoken]
    source = ParquetTable(
        write(tmp_path / "a.parquet", audio=(audio, MEDIUM), text=[text for _, text in spoken]), task="transcribe"
    )
    assert told(source[1]) == [("user", ["<AudioPart>"]), ("assistant", ["he was not an ill disposed young man"])]
    assert seconds_of(source[1].turns[0].parts[0]) == pytest.approx(2.99)


def test_a_path_without_bytes_is_relative_to_the_table(tmp_path):
    (tmp_path / "a.jpg").write_bytes(photographs()["china"])
    struct = write(tmp_path / "a.parquet", image=([{"bytes": None, "path": "a.jpg"}], MEDIUM), text=["x"])
    plain = write(tmp_path / "b.parquet", image=["a.jpg"], text=["x"])
    for path in (struct, plain):
        assert image_of(ParquetTable(path)[0].turns[0].parts[0]).size == (64, 43)


def test_conversations(tmp_path):
    two = said(("human", "<image>\n<image>\nCompare."), ("gpt", "Roofs; petals."))
    none = said(("human", "Who?"), ("gpt", "I."))
    images = ([pictures(2)[0], []], pyarrow.list_(MEDIUM))
    path = write(tmp_path / "a.parquet", images=images, conversations=[two, none])
    source = ParquetTable(path, task="converse", text="conversations", image="images")
    assert told(source[0])[0] == ("user", ["<ImagePart>", "\n", "<ImagePart>", "\nCompare."])
    assert told(source[1]) == [("user", ["Who?"]), ("assistant", ["I."])]
    messages = [[{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]]
    for column in (messages, ['[{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "I."}]']):
        source = ParquetTable(write(tmp_path / "b.parquet", messages=column), task="converse", text="messages")
        assert told(source[0]) == [("user", ["Who?"]), ("assistant", ["I."])]


def test_a_struct_whose_fields_are_null_is_no_picture(tmp_path):
    nothing, picture = {"bytes": None, "path": None}, pictures(1)[0][0]
    rows = ([nothing, picture, None], MEDIUM)
    path = write(tmp_path / "a.parquet", image=rows, question=["?"] * 3, answer=["a"] * 3, text=["a"] * 3)
    asked = [told(row)[0][1] for row in map(ParquetTable(path, task="answer", image="image").__getitem__, range(3))]
    assert asked == [["?"], ["<ImagePart>", "?"], ["?"]]
    with pytest.raises(BadSampleError, match="it has 0 media where the task describe takes one"):
        ParquetTable(path)[0]
    lists = ([[picture, nothing], [nothing]], pyarrow.list_(MEDIUM))
    path = write(tmp_path / "b.parquet", image=lists, question=["?"] * 2, answer=["a"] * 2)
    source = ParquetTable(path, task="answer", image="image")
    assert [told(source[number])[0][1] for number in range(2)] == [["<ImagePart>", "?"], ["?"]]


def test_unusable_rows_give_the_reason(tmp_path):
    cells = [None, {"bytes": b"", "path": "x"}, {"bytes": None, "path": None}, {"bytes": b"1", "path": None}] * 2
    texts = [b"t", b"t", b"t", b" ", b"t", b"t", b"t", b"caf\xe9"]
    text = pyarrow.array(texts).cast(pyarrow.string(), safe=False).view(pyarrow.string())
    pyarrow.parquet.write_table(
        pyarrow.table({"image": pyarrow.array(cells, MEDIUM), "text": text}), tmp_path / "a.parquet", row_group_size=4
    )
    source = ParquetTable(str(tmp_path / "a.parquet"))
    for index, reason in (
        (0, "it has 0 media where the task describe takes one"),
        (1, "its medium has no bytes"),
        (2, "it has 0 media where the task describe takes one"),
        (3, "column text is empty"),
        (7, "UnicodeDecodeError"),
    ):
        with pytest.raises(BadSampleError, match=reason) as caught:
            source[index]
        assert caught.value.where == f"{tmp_path}/a.parquet[{index}]"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"files": "{home}/gone.parquet"}, "does not exist"),
        ({"files": "{home}/text.parquet"}, "text.parquet cannot be read as Parquet"),
        ({"files": "{home}/none.parquet"}, "have no rows"),
        ({"text": "caption"}, "has no column caption; it has image, text, other"),
        ({"task": "transcribe"}, "has no column audio"),
        ({"task": "draw"}, "ParquetTable.task is 'draw'; choose one of describe, .*converse"),
        ({"audio": "audio"}, "takes one image and its text"),
        ({"cached_row_groups": 0}, "cached_row_groups is 0"),
    ],
)
def test_invalid_sources_are_refused_at_the_start(table, tmp_path, arguments, reason):
    (tmp_path / "text.parquet").write_text("PAR1 and no more PAR1")
    write(tmp_path / "none.parquet", image=([], MEDIUM), text=([], pyarrow.string()))
    arguments = {"files": table} | arguments
    arguments["files"] = arguments["files"].replace("{home}", str(tmp_path))
    with pytest.raises(DataError, match=reason):
        ParquetTable(**arguments)


def test_threads_may_share_it(table):
    source = ParquetTable(table, cached_row_groups=1)
    expected = [source[index] for index in range(5)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(source.__getitem__, [4, 0, 2, 1, 3] * 20)) == [expected[n] for n in [4, 0, 2, 1, 3] * 20]


def test_a_damaged_file_gives_records_or_data_errors(tmp_path):
    path, readable = tmp_path / "any.parquet", []
    cells = [{"bytes": b"picture", "path": "a.jpg"}] * 3

    @given(data=st.data())
    @settings(max_examples=50, deadline=None)
    def check(data):
        write(path, image=(cells, MEDIUM), text=["a", "b", "c"])
        damage_file(data, path)
        readable.append(count_readable(ParquetTable, path))

    check()
    assert 0 < sum(readable) < 3 * len(readable)


def test_a_column_of_media_that_no_parameter_names_is_warned_of_once(tmp_path, caplog):
    talk = [said(("human", "Who?"), ("gpt", "I."))]
    path = write(tmp_path / "a.parquet", images=([pictures(1)[0]], pyarrow.list_(MEDIUM)), text=talk)
    other = write(tmp_path / "b.parquet", images=([[]], pyarrow.list_(MEDIUM)), text=talk)
    ParquetTable([path, other], task="converse")
    (message,) = (record.getMessage() for record in caplog.records)
    assert "media in the column images are not read; ParquetTable.image, audio or video names" in message
    caplog.clear()
    ParquetTable(path, task="converse", image="images")
    assert not caplog.records
