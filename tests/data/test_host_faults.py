"""The host's faults while samples are read: tried again, then the end of the run, and never a bad sample."""

import dataclasses
import errno
import gc
import os
import pickle
import resource
import zlib

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import soundfile
from PIL import Image

import data.records
from configs.common.errors import STORAGE_FAILED
from data import host_faults
from data.errors import BadSampleError, HostError
from data.media.clips.video import read_header
from data.media.clips.video_writing import write_clip
from data.media.images import image_size, read_image
from data.media.sound.audio import read_audio
from data.packing.pipeline import evaluation_batches
from data.records import Media, MediaFile
from data.sources.parquet import ParquetTable
from tests.data.first_samples import MODEL, VQA, First
from tests.process_limits import as_nobody, limited


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(host_faults, "PAUSES", (0.0, 0.0))


def address_space():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def write_noise(folder, kind):
    """A file of a kind that is read in several pieces."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (3, 128, 128, 3), np.uint8)
    path = folder / f"noise.{kind}"
    if kind == "mp4":
        write_clip(path, pixels, 2)
    elif kind == "png":
        Image.fromarray(pixels[0]).save(path)
    else:
        soundfile.write(path, random.uniform(-1, 1, 48_000), 16_000)
    return path


READ = {"png": read_image, "wav": read_audio, "flac": read_audio, "mp4": read_header}


def test_a_valid_picture_of_49_million_pixels_under_a_memory_limit(tmp_path):
    Image.new("L", (7_000, 7_000), 7).save(tmp_path / "large.png")
    media = Media.from_file(tmp_path / "large.png")

    def decode():
        return read_image(media)

    gc.collect()  # arrays of earlier tests that are freed meanwhile would make room
    with limited(resource.RLIMIT_AS, address_space() + (100 << 20)):
        with pytest.raises(HostError, match=r"large\.png: out of memory") as error:
            host_faults.retried(decode, "sample 0")
        size = image_size(media)
    assert error.value.memory and size == (7_000, 7_000)
    assert (decode() == 7).all()


@pytest.mark.parametrize("raised", [MemoryError(), OSError("out of memory when reading"), zlib.error("Error -4 while")])
def test_a_sample_that_asks_for_too_much_though_there_is_room_is_bad(raised, monkeypatch):
    monkeypatch.setattr(host_faults, "MOST_MEMORY", 1 << 20)
    calls = []

    def decode():
        calls.append(1)
        raise raised

    with pytest.raises(BadSampleError, match="sample 3 .*asks for more memory than any valid one"):
        host_faults.retried(decode, "sample 3")
    assert len(calls) == 3


@pytest.mark.parametrize("kind", READ)
def test_no_descriptors_are_left(tmp_path, kind):
    media = Media.from_file(write_noise(tmp_path, kind))
    with limited(resource.RLIMIT_NOFILE, 3), pytest.raises(HostError, match=rf"noise\.{kind}: Too many open files"):
        READ[kind](media)
    READ[kind](media)


@pytest.mark.parametrize("kind", READ)
def test_a_file_that_may_not_be_read(tmp_path, kind):
    path = write_noise(tmp_path, kind)
    path.chmod(0)
    with as_nobody(), pytest.raises(HostError, match=rf"noise\.{kind}: Permission denied"):
        READ[kind](Media.from_file(path))


@pytest.mark.parametrize("kind", READ)
def test_a_read_that_fails_within_a_file_is_no_truncation(tmp_path, kind, monkeypatch, capfd):
    """The descriptor becomes that of a file whose reads fail with EIO, after the first piece."""
    broken = os.open("/proc/self/mem", os.O_RDONLY)

    class Broken(MediaFile):
        pieces = 0

        def readinto(self, buffer, /):
            self.pieces += 1
            if self.pieces == 2:
                os.dup2(broken, self.fileno())
            return super().readinto(buffer)

    path = write_noise(tmp_path, kind)
    monkeypatch.setattr(data.records, "MediaFile", Broken)
    try:
        with pytest.raises(HostError, match=rf"noise\.{kind}: Input/output error"):
            READ[kind](Media.from_file(path))
    finally:
        os.close(broken)
    assert "Traceback" not in capfd.readouterr().err


def test_ranges_of_files_and_rows_of_tables(tmp_path):
    (tmp_path / "shard.tar").write_bytes(bytes(100))
    pyarrow.parquet.write_table(
        pyarrow.table({"image": [{"bytes": b"x", "path": None}], "text": ["a"]}), tmp_path / "rows.parquet"
    )
    rows = ParquetTable(str(tmp_path / "rows.parquet"), image="image")
    with limited(resource.RLIMIT_NOFILE, 3):
        with pytest.raises(HostError, match="Too many open files"):
            Media("member", str(tmp_path / "shard.tar"), 10, 10).read()
        with pytest.raises(HostError, match="Too many open files"):
            rows[0]
    assert rows[0].key.endswith("[0]")
    with pytest.raises(BadSampleError, match="No such file"):
        Media.from_file(tmp_path / "none").read()
    with pytest.raises(HostError, match="Input/output error"):
        Media.from_file("/proc/self/mem").read()


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ETIMEDOUT, errno.ESTALE, errno.ENOMEM]
)
def test_which_errors_are_the_hosts(number):
    fault = host_faults.host_fault("a", OSError(number, os.strerror(number), "shard.tar"))
    assert fault is not None and fault.exit_code == STORAGE_FAILED
    assert number == errno.ENOMEM or fault.where == "shard.tar"
    copied = pickle.loads(pickle.dumps(fault))
    assert (str(copied), copied.memory) == (str(fault), fault.memory)
    said = host_faults.described_fault("a", RuntimeError(f"INTERNAL: {os.strerror(number)}; reading x"))
    assert number == errno.ESTALE or said is not None


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG])
def test_which_errors_are_the_contents(number):
    assert host_faults.host_fault("a", OSError(number, os.strerror(number))) is None
    assert host_faults.host_fault("a", OSError("image file is truncated")) is None
    assert host_faults.host_fault("a", ValueError("Input/output error")) is None


def test_a_fault_that_passes_costs_no_sample(tmp_path, monkeypatch, caplog):
    path = write_noise(tmp_path, "png")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    monkeypatch.setattr(host_faults.time, "sleep", lambda _: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))
    try:
        image = host_faults.retried(lambda: read_image(Media.from_file(path)), "sample 0")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert image.shape == (128, 128, 3) and "tried again" in caplog.text


def test_a_run_ends_with_the_file_and_the_error_and_refuses_no_sample(tmp_path):
    path = tmp_path / "picture.png"
    Image.new("RGB", (64, 64)).save(path)
    source = First("test", 4, image_paths=dict.fromkeys(First("test", 4).image_ids, path))
    path.chmod(0)
    batches = evaluation_batches(dataclasses.replace(VQA, max_refused_share=0.9, threads=0, prefetch=0), MODEL, source)
    batches.list_refused_in(tmp_path / "run")
    with as_nobody(), pytest.raises(HostError, match=r"picture\.png: Permission denied; this machine"):
        next(batches)
    assert batches.counters()["unreadable_samples"] == 0 and not (tmp_path / "run").exists()
    batches.close()
