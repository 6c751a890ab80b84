"""Checkpoint folders: bounded file sizes, an index, atomic writes, and invalid folders."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.common.errors import UserError
from mmjax.weights.folder import open_folder, parse_file_size, read_config_json, shard_tensors, write_checkpoint_folder
from mmjax.weights.safetensors_file import TensorHeader, write_safetensors

ARRAYS = {f"layer.{number}": np.full((4, 4), number, np.float32) for number in range(5)}
DECLARED = {name: TensorHeader("F32", array.shape) for name, array in ARRAYS.items()}


def write(path, limit):
    return write_checkpoint_folder(path, "model", DECLARED, iter(ARRAYS.items()), limit, {"config.json": "{}"})


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(1, 30))
def test_files_stay_within_the_size_limit(sizes, limit):
    by_name = {str(number): size for number, size in enumerate(sizes)}
    files = shard_tensors(by_name, limit)
    assert [name for file in files for name in file] == list(by_name)
    held = [sum(by_name[name] for name in file) for file in files]
    assert all(total <= limit or len(file) == 1 for total, file in zip(held, files, strict=True))
    following = [by_name[file[0]] for file in files[1:]]
    assert all(total + size > limit for total, size in zip(held[:-1], following, strict=True))


@pytest.mark.parametrize(("limit", "files"), [(10**6, 1), (128, 3), (1, 5)])
def test_a_round_trip_is_identical(tmp_path, limit, files):
    names = write(tmp_path / "out", limit)
    assert len(names) == files
    folder = open_folder(tmp_path / "out", "model")
    assert set(folder.tensors) == set(ARRAYS) and read_config_json(tmp_path / "out") == {}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(folder.read(name), array)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parity
def test_the_safetensors_library_loads_the_shards(tmp_path):
    library = pytest.importorskip("safetensors")
    write(tmp_path / "out", 128)
    places = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    for name, file in places.items():
        with library.safe_open(tmp_path / "out" / file, framework="np") as opened:
            assert opened.metadata() == {"format": "pt"}
            np.testing.assert_array_equal(opened.get_tensor(name), ARRAYS[name])


def test_existing_folders_are_kept_and_unfinished_ones_removed(tmp_path):
    write(tmp_path / "out", 128)
    with pytest.raises(UserError, match="not empty"):
        write(tmp_path / "out", 128)

    def broken():
        yield "layer.0", ARRAYS["layer.0"]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_checkpoint_folder(tmp_path / "other", "model", DECLARED, broken(), 128)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("3 MiB", 3 * 2**20), ("10", 10)])
def test_file_sizes_are_parsed(text, size):
    assert parse_file_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "5 XB", "-1GB", "0GB"])
def test_invalid_file_sizes_are_refused(text):
    with pytest.raises(UserError, match="5GB"):
        parse_file_size(text)


def broken_copy(tmp_path):
    write(tmp_path / "out", 128)
    return tmp_path / "out"


@pytest.mark.parametrize("index_first", [False, True])
def test_a_single_file_beside_a_stale_index_counts_as_in_the_library_of_the_format(tmp_path, caplog, index_first):
    path = broken_copy(tmp_path)
    newer = {name: array + 100 for name, array in ARRAYS.items()}
    write_safetensors(path / "model.safetensors", DECLARED, newer.items())
    folder = open_folder(path, "model", index_first)
    for name, array in (ARRAYS if index_first else newer).items():
        np.testing.assert_array_equal(folder.read(name), array)
    kept, left = ("model.safetensors.index.json", "model.safetensors")[:: 1 if index_first else -1]
    assert f"{left} too, which is not read: {kept} counts" in caplog.text


def test_a_stale_index_without_its_shards_hides_no_single_file(tmp_path):
    path = broken_copy(tmp_path)
    for shard in path.glob("model-*.safetensors"):
        shard.unlink()
    write_safetensors(path / "model.safetensors", DECLARED, ARRAYS.items())
    assert set(open_folder(path, "model").tensors) == set(ARRAYS)


def test_an_index_with_missing_shards_is_refused(tmp_path):
    path = broken_copy(tmp_path)
    (path / "model-00001-of-00003.safetensors").unlink()
    (path / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match="model-00001-of-00003.safetensors, model-00003-of-00003.safetensors"):
        open_folder(path, "model")


def test_an_index_with_missing_tensors_is_refused(tmp_path):
    path = broken_copy(tmp_path)
    shutil.copyfile(path / "model-00001-of-00003.safetensors", path / "model-00003-of-00003.safetensors")
    with pytest.raises(UserError, match=r"layer\.4 in model-00003"):
        open_folder(path, "model")


def test_an_index_without_a_weight_map_is_refused(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match="weight_map"):
        open_folder(tmp_path, "model")


@pytest.mark.parametrize(
    "file", ["../other/model.safetensors", "/etc/model.safetensors", "", "a/../../b", 7, ["x"], "a\0b"]
)
def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path, file):
    path = broken_copy(tmp_path)
    index = path / "model.safetensors.index.json"
    places = json.loads(index.read_text())
    places["weight_map"]["layer.0"] = file
    index.write_text(json.dumps(places))
    with pytest.raises(UserError, match="is no file of the folder"):
        open_folder(path, "model")


@pytest.mark.parametrize("weight_map", [["layer.0"], "model.safetensors", 3, None])
def test_a_weight_map_that_is_no_object_is_refused(tmp_path, weight_map):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UserError, match="weight_map"):
        open_folder(tmp_path, "model")


def test_shards_may_be_links_out_of_the_folder_as_in_the_cache_of_the_hub(tmp_path):
    path = broken_copy(tmp_path)
    shard = path / "model-00001-of-00003.safetensors"
    shard.rename(tmp_path / "blob")
    shard.symlink_to(tmp_path / "blob")
    assert set(open_folder(path, "model").tensors) == set(ARRAYS)


def test_a_pickle_is_refused_with_the_reason(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"pytorch_model\.bin .* pickles, and reading one runs whatever code"):
        open_folder(tmp_path, "model")


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        open_folder(tmp_path, "model")
    with pytest.raises(UserError, match=r"has no config\.json"):
        read_config_json(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        read_config_json(tmp_path / "absent")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        read_config_json(tmp_path)
