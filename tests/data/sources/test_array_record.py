import concurrent.futures
import json
import pickle
import struct

import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import BadSampleError, DataError
from data.quarantine import Quarantine
from data.records import AudioPart, ImagePart, Media, Record, RecordSource, TextPart, Turn
from data.sources.array_record import ArrayRecord, decode_record, encode_record, write_array_record
from data.sources.llava import LlavaJson
from tests.data.damage import count_readable, damage_file
from tests.data.sources.media import photographs
from tests.data.sources.test_messages import said

words = st.text(st.characters(codec="utf-8"), max_size=8)
parts = st.tuples(st.sampled_from([TextPart, ImagePart, AudioPart]), words, st.binary(max_size=20))
turns = st.tuples(st.sampled_from(["system", "user", "assistant"]), st.lists(parts, max_size=4))
drafts = st.tuples(words, st.lists(turns, max_size=3))


def made(draft):
    """The record of a draft; strategies build none themselves, for the type checker draws random numbers."""
    key, turns = draft

    def part(kind, text, content):
        return TextPart(text) if kind is TextPart else kind(Media(text, content=content))

    return Record(key, tuple(Turn(role, tuple(part(*item) for item in items)) for role, items in turns))


def record(number):
    """A record of a picture of its own."""
    shown = ImagePart(Media(f"{number}.jpg", content=bytes([number]) * number))
    return Record(
        f"key {number}", (Turn("user", (shown, TextPart("What?"))), Turn("assistant", (TextPart(f"{number}"),)))
    )


@given(draft=drafts)
@settings(max_examples=50, deadline=None)
def test_records_are_decoded_unchanged(draft):
    record = made(draft)
    assert decode_record("where", encode_record(record)) == record


@given(listed=st.lists(drafts, min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_records_are_read_from_files_unchanged(tmp_path_factory, listed):
    listed = list(map(made, listed))
    path = str(tmp_path_factory.getbasetemp() / "any.array_record")
    quarantine = Quarantine({path: len(listed)}, 0.0)
    assert write_array_record(path, listed, quarantine) == len(listed)
    source = ArrayRecord(path)
    assert isinstance(source, RecordSource)
    assert [source[index] for index in range(len(source))] == listed


def test_every_source_can_be_converted_and_bad_records_are_listed(tmp_path):
    (tmp_path / "china.jpg").write_bytes(photographs()["china"])
    ask = said(("human", "<image>\nWhat is it?"), ("gpt", "A temple."))
    lines = [{"image": "china.jpg", "conversations": ask}, {"image": "gone.jpg", "conversations": ask}, 3]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [*lines, lines[0]])))
    llava = LlavaJson(str(tmp_path / "a.jsonl"))
    quarantine = Quarantine({"a": 4}, 0.5)
    path = str(tmp_path / "out" / "a.array_record")
    assert write_array_record(path, llava, quarantine) == 2
    source = ArrayRecord(path)
    assert [source[0].key, source[1].key] == ["a.jsonl:1", "a.jsonl:4"]
    assert source[0].turns[0].parts[0].media.read() == photographs()["china"]
    assert source[0].turns[1] == llava[0].turns[1]
    assert quarantine.entries == (
        ("a", "a.jsonl:2", f"{tmp_path}/gone.jpg: No such file or directory"),
        ("a", "a.jsonl:3", "the entry is not an object"),
    )
    with pytest.raises(DataError, match="2 of 4 samples cannot be used"):
        write_array_record(path, llava, Quarantine({"a": 4}, 0.25))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.array_record"]
    assert len(ArrayRecord(path)) == 2


def test_several_files_are_one_source_that_threads_and_processes_share(tmp_path):
    listed = [record(number) for number in range(1, 8)]
    for name, stretch in (("a-0", listed[:3]), ("a-1", listed[3:])):
        path = str(tmp_path / name)
        write_array_record(path, stretch, Quarantine({path: 9}, 0.0))
    source = ArrayRecord(f"{tmp_path}/a-*", name="own")
    assert (source.name, len(source)) == ("own", 7)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(source.__getitem__, [6, 0, 3, 2] * 10)) == [listed[n] for n in [6, 0, 3, 2] * 10]
    assert pickle.loads(pickle.dumps(source))[3] == listed[3]
    with pytest.raises(IndexError):
        source[7]


def entry(header, payload=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<4sI", b"MMR1", len(text)) + text + payload


def turn(*items, role="user"):
    return {"key": "k", "turns": [{"role": role, "parts": list(items)}]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "does not begin with MMR1"),
        (b"TFRecord of someone", "does not begin with MMR1"),
        (entry(b"{"), "not JSON"),
        (entry(b"\xff"), "not UTF-8"),
        (entry([]), "no key"),
        (entry({"key": 3}), "no key"),
        (entry({"key": "k"}), "no list of turns"),
        (entry({"key": "k", "turns": [3]}), "no list of turns"),
        (entry({"key": "\ud800", "turns": []}), "the key has a lone surrogate"),
        (entry(turn(role="tool")), "a turn is of 'tool'"),
        (entry({"key": "k", "turns": [{"role": "user"}]}), "no list of parts"),
        (entry(turn({"text": "\ud800"})), "lone surrogate"),
        (entry(turn({"image": 3}), b"12"), "neither text nor a medium within"),
        (entry(turn({"image": -1}), b"12"), "neither text nor a medium within"),
        (entry(turn({"image": 1}), b"12"), "describes"),
        (entry(turn())[:-1], "not JSON"),
    ],
)
def test_invalid_records_are_refused_with_the_reason(content, reason):
    with pytest.raises(BadSampleError, match=reason):
        decode_record("where", content)


def test_files_of_other_content_are_bad_samples(tmp_path):
    path = str(tmp_path / "a")
    writer = ArrayRecordWriter(path, "group_size:1")
    writer.write(b"something else")
    writer.close()
    with pytest.raises(BadSampleError, match=r"a\[0\] cannot be read \(it is not a record"):
        ArrayRecord(path)[0]


def test_invalid_sources_are_refused_at_the_start(tmp_path):
    (tmp_path / "text").write_text("x" * 100)
    with pytest.raises(DataError, match="text cannot be read as ArrayRecord"):
        ArrayRecord(str(tmp_path / "text"))
    with pytest.raises(DataError, match="gone' does not exist"):
        ArrayRecord(str(tmp_path / "gone"))
    assert write_array_record(str(tmp_path / "none"), [], Quarantine({}, 0.0)) == 0
    with pytest.raises(DataError, match="have no records"):
        ArrayRecord(str(tmp_path / "none"))
    with pytest.raises(DataError, match="cannot be written"):
        write_array_record(str(tmp_path / "text" / "a"), [], Quarantine({}, 0.0))


@given(content=st.binary(max_size=60), header=st.binary(max_size=40) | words.map(str.encode))
@settings(max_examples=50, deadline=None)
def test_any_bytes_give_a_record_or_bad_sample_error(content, header):
    for attempt in (content, entry(header, content)):
        with pytest.raises(BadSampleError):
            decode_record("where", attempt)


@given(draft=drafts, data=st.data())
@settings(max_examples=50, deadline=None)
def test_damaged_bytes_give_a_record_or_bad_sample_error(draft, data):
    content = bytearray(encode_record(made(draft)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(decode_record("where", bytes(content)), Record)
    except BadSampleError as error:
        assert error.where == "where"


def test_a_damaged_file_gives_records_or_data_errors(tmp_path):
    path, readable = tmp_path / "damaged.array_record", []

    @given(data=st.data())
    @settings(max_examples=40, deadline=None)
    def check(data):
        write_array_record(str(path), [record(number) for number in range(1, 6)], Quarantine({str(path): 9}, 0.0))
        damage_file(data, path)
        readable.append(count_readable(ArrayRecord, path))

    check()
    assert 0 < sum(readable) < 5 * len(readable)
