"""The compilation cache: what the environment decides, its size, and a second process that compiles nothing."""

import os
import pathlib
import subprocess
import sys

import pytest

from sharding.runtime import compilation_cache

HOME = pathlib.Path(compilation_cache.__file__).resolve().parents[2]
VARIABLES = (compilation_cache.FOLDER, "JAX_ENABLE_COMPILATION_CACHE", *compilation_cache.SETTINGS)

TRAIN = """
import collections, os, sys
from mmjax.distributed.devices import ensure_cpu_devices
from sharding.runtime.compilation_cache import enable_compilation_cache
ensure_cpu_devices()
enable_compilation_cache()
assert "jax" not in sys.modules
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.rpartition("/")[2]]))
for first in (0, 4):
    mesh = Mesh(np.array(jax.devices()[first : first + 4]), ("x",))
    mean = jax.shard_map(lambda x: jax.lax.pmean(jax.numpy.tanh(x), "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    value = jax.jit(mean)(np.linspace(0, 1, 400, dtype=np.float32))
    print(np.asarray(value).tobytes().hex(), [device.id for device in value.sharding.mesh.devices])
print(events["compile_requests_use_cache"], events["cache_hits"], events["cache_misses"])
"""


@pytest.fixture
def environment(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")  # so that what the code sets is undone
        monkeypatch.delenv(variable)
    return monkeypatch


def start(cache_home: pathlib.Path, **variables: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment.update(PYTHONPATH=str(HOME), XDG_CACHE_HOME=str(cache_home), **variables)
    result = subprocess.run([sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "cache" not in result.stderr, "jax has nothing to complain about"
    return result.stdout.splitlines()


@pytest.mark.processes
def test_a_second_process_finds_every_program_and_gets_the_same_bits(tmp_path):
    *first, counts = start(tmp_path)
    requests, hits, misses = map(int, counts.split())
    assert (requests, hits, misses) == (2, 0, 2), "one program for each of two groups of four devices"
    entries = sorted(path.name for path in (tmp_path / "mmjax" / "compilation").iterdir())
    assert len(entries) == 2
    *second, counts = start(tmp_path)
    assert counts == "2 2 0"
    assert second == first
    assert sorted(path.name for path in (tmp_path / "mmjax" / "compilation").iterdir()) == entries
    *_, counts = start(tmp_path, XLA_FLAGS=f"{os.environ['XLA_FLAGS']} --xla_cpu_max_isa=SSE4_2")
    assert counts == "2 0 2", "programs for other instructions are other entries"


@pytest.mark.processes
def test_the_user_turns_it_off(tmp_path):
    assert start(tmp_path, JAX_ENABLE_COMPILATION_CACHE="false")[-1] == "0 0 0"


def test_a_folder_of_the_users_own_stays(environment, tmp_path):
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environment.setenv(compilation_cache.FOLDER, str(tmp_path / "mine"))
    compilation_cache.enable_compilation_cache()
    assert os.environ[compilation_cache.FOLDER] == str(tmp_path / "mine")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("cache_home", ["", "relative/folder"])
def test_without_an_absolute_cache_home_the_folder_is_in_the_home(monkeypatch, tmp_path, cache_home):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", cache_home)
    assert compilation_cache.default_cache_folder() == tmp_path / ".cache" / "mmjax" / "compilation"


def test_a_folder_that_cannot_be_made_means_no_cache(environment, tmp_path):
    (tmp_path / "file").write_text("")
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compilation_cache.enable_compilation_cache()
    assert compilation_cache.FOLDER not in os.environ


def test_the_oldest_entries_and_empty_ones_are_deleted(environment, monkeypatch, tmp_path):
    folder = tmp_path / "mmjax" / "compilation"
    folder.mkdir(parents=True)
    for age, size in enumerate((300, 300, 0, 300)):
        path = folder / f"jit_{age}-cache"
        path.write_bytes(b"x" * size)
        os.utime(path, (10_000 - age, 10_000 - age))
    environment.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compilation_cache, "MAX_BYTES", 700)
    monkeypatch.delitem(sys.modules, "jax")  # the settings of this process stay as they are
    compilation_cache.enable_compilation_cache()
    assert sorted(path.name for path in folder.iterdir()) == ["jit_0-cache", "jit_1-cache"]
