"""Safetensors files: agreement with the format's own library, slices, and invalid files."""

import contextlib
import json
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.common.errors import UserError
from mmjax.weights.safetensors_file import (
    COPY_STRIP,
    DTYPES,
    TensorHeader,
    contiguous_copy,
    read_header,
    read_tensor,
    write_safetensors,
)

ARRAYS = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.array([1.5, -0.0, np.inf]).astype(ml_dtypes.bfloat16),
    "scalar": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.float16),
    "f8": np.array([[0.5, 2.0]]).astype(ml_dtypes.float8_e4m3fn),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> pathlib.Path:
    write_safetensors(path, {name: TensorHeader(NAMES[a.dtype], a.shape) for name, a in arrays.items()}, arrays.items())
    return path


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def test_a_round_trip_is_identical(tmp_path):
    path = write(tmp_path / "x.safetensors", ARRAYS)
    header = read_header(path)
    assert list(header) == list(ARRAYS)
    assert all(same_bits(read_tensor(path, header[name]), array) for name, array in ARRAYS.items())
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parity
def test_the_safetensors_library_reads_and_writes_the_same(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    arrays = {name: array for name, array in ARRAYS.items() if name != "f8"}  # which it can't read into NumPy
    loaded = library.load_file(write(tmp_path / "ours.safetensors", arrays))
    assert all(same_bits(loaded[name], array) for name, array in arrays.items())
    library.save_file(ARRAYS, tmp_path / "theirs.safetensors")
    header = read_header(tmp_path / "theirs.safetensors")
    assert all(same_bits(read_tensor(tmp_path / "theirs.safetensors", header[name]), ARRAYS[name]) for name in ARRAYS)


@pytest.fixture(scope="module")
def cube(tmp_path_factory):
    array = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)
    return write(
        tmp_path_factory.mktemp("cube") / "cube.safetensors", {"pad": np.zeros(3, np.uint8), "x": array}
    ), array


@settings(max_examples=30)
@given(data=st.data())
def test_a_slice_equals_the_slice_of_the_whole_tensor(cube, data):
    path, array = cube
    bounds = [sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))) for n in array.shape]
    part = tuple(slice(*of) for of in bounds)
    np.testing.assert_array_equal(read_tensor(path, read_header(path)["x"], part), array[part])


def test_a_truncated_file_is_refused_at_every_length(tmp_path):
    whole = write(tmp_path / "whole.safetensors", ARRAYS).read_bytes()
    for kept in range(len(whole)):
        (tmp_path / "cut.safetensors").write_bytes(whole[:kept])
        with pytest.raises(UserError, match="truncated|not a safetensors file"):
            read_header(tmp_path / "cut.safetensors")


@pytest.mark.parametrize(
    "header",
    [
        "no json",
        json.dumps([1]),
        json.dumps({"a": {"dtype": "F32"}}),
        json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
    ],
)
def test_an_invalid_header_is_refused(tmp_path, header):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"1234")
    with pytest.raises(UserError, match="bad.safetensors"):
        read_header(path)


def entry(start: int, end: int, **others) -> dict:
    return {"dtype": "F32", "shape": [(end - start) // 4], "data_offsets": [start, end], **others}


DAMAGED = {
    "overlapping tensors": ({"a": entry(0, 8), "b": entry(4, 12)}, 12, "b overlaps a"),
    "two tensors at one place": ({"a": entry(0, 8), "b": entry(0, 8)}, 8, "b overlaps a"),
    "a hole between tensors": ({"a": entry(0, 8), "b": entry(12, 20)}, 20, "b leaves a hole"),
    "a hole before the first": ({"a": entry(8, 16)}, 16, "a leaves a hole"),
    "bytes behind the last": ({"a": entry(0, 8)}, 9, "1 bytes follow the last"),
    "bytes without tensors": ({}, 4, "4 bytes follow the last"),
    "an empty tensor within another": ({"a": entry(0, 8), "e": entry(4, 4)}, 8, "e overlaps a"),
    "an end before the start": ({"a": entry(0, 4, data_offsets=[4, 0])}, 4, "before it starts"),
    "metadata that are no texts": ({"__metadata__": {"x": 1}, "a": entry(0, 4)}, 4, "__metadata__"),
    "an unknown type": ({"a": entry(0, 4, dtype="F99")}, 4, "F99"),
}
"""Header, bytes of tensors and message of files that the package `safetensors` refuses."""


def write_raw(path: pathlib.Path, header: dict, size: int) -> pathlib.Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    return path


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_whose_tensors_do_not_cover_it_once_is_refused(tmp_path, name):
    header, size, message = DAMAGED[name]
    with pytest.raises(UserError, match=message):
        read_header(write_raw(tmp_path / "x.safetensors", header, size))


WHOLE = {
    "tensors in another order than their bytes": ({"b": entry(8, 16), "a": entry(0, 8)}, 16),
    "an empty tensor between two": ({"a": entry(0, 8), "e": entry(8, 8), "b": entry(8, 16)}, 16),
    "no tensors": ({}, 0),
    "a type that NumPy does not have": ({"a": entry(0, 4, dtype="F8_E8M0", shape=[4])}, 4),
}
"""Header and bytes of tensors of files that the package `safetensors` reads."""


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_whose_tensors_cover_it_once_is_read(tmp_path, name):
    header, size = WHOLE[name]
    assert set(read_header(write_raw(tmp_path / "x.safetensors", header, size))) == set(header)


@pytest.mark.parity
@pytest.mark.parametrize("name", [*DAMAGED, *WHOLE])
def test_the_safetensors_library_refuses_the_same_files(tmp_path, name):
    library = pytest.importorskip("safetensors")
    header, size, *refused = {**DAMAGED, **WHOLE}[name]
    path = write_raw(tmp_path / "x.safetensors", header, size)
    with pytest.raises(library.SafetensorError) if refused else contextlib.nullcontext():
        library.safe_open(path, framework="np").__enter__()


def test_an_existing_file_survives_a_failed_write(tmp_path):
    path = write(tmp_path / "x.safetensors", {"a": ARRAYS["a"]})
    before = path.read_bytes()

    def broken():
        yield "a", ARRAYS["a"]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_safetensors(path, {"a": TensorHeader("F32", (3, 4)), "b": TensorHeader("F32", (1,))}, broken())
    with pytest.raises(ValueError, match="declared"):
        write_safetensors(path, {"a": TensorHeader("F32", (4, 3))}, [("a", ARRAYS["a"])])
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_contiguous_copies_equal_their_source(axes):
    array = (
        np.arange(3 * (COPY_STRIP + 5) * 2, dtype=np.float32).reshape(3, COPY_STRIP + 5, 2).astype(ml_dtypes.bfloat16)
    )
    copy = contiguous_copy(array.transpose(axes), np.dtype(np.float32))
    np.testing.assert_array_equal(copy, array.astype(np.float32).transpose(axes))
    assert copy.flags.c_contiguous and not np.shares_memory(copy, array)


@pytest.mark.processes
def test_reading_a_slice_maps_only_its_pages(tmp_path):
    """Runs in a subprocess whose peak memory is measured."""
    path = tmp_path / "large.safetensors"
    write(path, {"x": np.ones((1000, 12_500), np.float32)})  # 50 MB
    script = (
        "import pathlib, sys\n"
        "from mmjax.weights.safetensors_file import read_header, read_tensor\n"
        "from tests.mmjax.weights.process_memory import memory\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "tensor = read_header(path)['x']\n"
        "before = memory('VmRSS')\n"
        "read = read_tensor(path, tensor, (slice(200, 400), slice(None))).copy()\n"
        "print(read.nbytes, memory('VmHWM') - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    read, grown = map(int, done.stdout.split())
    assert grown < 2 * read + 10_000_000 < 50_000_000  # the copy, and the pages it was copied from
