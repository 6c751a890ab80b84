import dataclasses
import gzip
import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.sources.tar_index import index_tar

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def tar(members, layout=tarfile.USTAR_FORMAT):
    """The bytes of a tar of names and contents; a content that is a letter is the type of a member without content."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=layout) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content.encode(), "target"
                archive.addfile(info)
    return file.getvalue()


def indexed(folder, content):
    (folder / "a.tar").write_bytes(content)
    return index_tar(str(folder / "a.tar"))


def contents(index, content):
    return [(member.name, content[member.offset : member.offset + member.size]) for member in index.members]


names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=8) | st.sampled_from(
    ["long/" * 30 + "name.txt", "n" * 150, "é" * 80]
)


@pytest.mark.parametrize("layout", FORMATS.values(), ids=FORMATS)
@given(members=st.lists(st.tuples(names, st.binary(max_size=1100)), max_size=6))
@settings(max_examples=40, deadline=None)
def test_members_are_those_of_tarfile(tmp_path_factory, layout, members):
    try:
        content = tar(members, layout)
    except ValueError:  # a name too long for ustar
        return
    index = indexed(tmp_path_factory.getbasetemp(), content)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        expected = [(member.name, member.offset_data, member.size) for member in archive if member.isreg()]
    assert [dataclasses.astuple(member) for member in index.members] == expected
    assert not index.damage


def test_folders_and_links_have_no_payload(tmp_path):
    content = tar(
        [("folder", "5"), ("a", b"first"), ("link", "2"), ("hard", "1"), ("b", b"second")], tarfile.GNU_FORMAT
    )
    assert contents(indexed(tmp_path, content), content) == [("a", b"first"), ("b", b"second")]


def test_sizes_in_base_256_and_pax_headers(tmp_path):
    for layout in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("big")
        info.size = 9 << 30
        index = indexed(tmp_path, info.tobuf(layout))
        assert [(member.name, member.size) for member in index.members] == [("big", 9 << 30)]
        assert index.is_truncated(index.members[0])


@pytest.mark.parametrize("layout", FORMATS.values(), ids=FORMATS)
def test_complete_members_of_truncated_tars_are_indexed(tmp_path, layout):
    whole = tar([("a.jpg", b"a" * 700), ("n" * (90 if layout == 0 else 130), b"b" * 600), ("c.txt", b"c")], layout)
    members = indexed(tmp_path, whole).members
    end = members[-1].offset + 512
    for kept in range(512, end, 128):
        index = indexed(tmp_path, whole[:kept])
        usable = [member for member in index.members if not index.is_truncated(member)]
        assert usable == [member for member in members if member.offset + member.size <= kept]
        assert index.damage == f"the file is truncated at byte {kept}"


def test_indexing_ends_at_a_damaged_header(tmp_path):
    content = bytearray(tar([("a", b"a"), ("b", b"b"), ("c", b"c")]))
    content[1024 + 3] ^= 255
    index = indexed(tmp_path, bytes(content))
    assert [member.name for member in index.members] == ["a"]
    assert index.damage.startswith("the header at byte 1024 is damaged")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"short", "not a tar"),
        (b"x" * 2000, "not a tar"),
        (gzip.compress(tar([("a", b"a")]), mtime=0), r"compressed \(gzip\).*decompress it"),
    ],
    ids=["short", "letters", "gzip"],
)
def test_files_that_are_no_tar_are_refused(tmp_path, content, reason):
    with pytest.raises(DataError, match=reason):
        indexed(tmp_path, content)


@given(data=st.data(), layout=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
@settings(max_examples=50, deadline=None)
def test_a_damaged_tar_gives_members_or_bad_sample_error(tmp_path_factory, data, layout):
    content = bytearray(tar([("a.jpg", b"a" * 600), ("é" * 70, b"b"), ("c.txt", b"c" * 10)], layout))
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    kept = data.draw(st.integers(0, len(content)))
    try:
        index = indexed(tmp_path_factory.getbasetemp(), bytes(content[:kept]))
    except DataError:
        return
    assert index.size == kept
    assert all(member.size >= 0 and member.offset <= kept for member in index.members)
    assert not any(index.is_truncated(member) for member in index.members[:-1])
