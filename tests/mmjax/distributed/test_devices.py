"""The devices of a process: simulated ones, and its share of the GPUs of its host."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.clusters import CLUSTERS
from configs.common.errors import UserError
from mmjax.distributed.devices import ALLOCATOR_VARIABLES, ensure_cpu_devices, local_device_ids, visible_gpus
from mmjax.distributed.environments import ProcessPlacement

SHARE, FORMER = ALLOCATOR_VARIABLES


@pytest.fixture
def environment(monkeypatch):
    """Sets variables of an environment without settings of jax."""
    for variable in ("XLA_FLAGS", "JAX_PLATFORMS", SHARE, FORMER):
        monkeypatch.setenv(variable, "")  # so that it is restored, whoever sets it
        monkeypatch.delenv(variable)
    return lambda **variables: [monkeypatch.setenv(*variable) for variable in variables.items()]


def placed(local: int | None, count: int | None) -> ProcessPlacement:
    return ProcessPlacement(coordinator="a:1", processes=64, process=3, local_process=local, local_processes=count)


def test_other_xla_flags_are_kept(environment):
    environment(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_dump_to=x")
    ensure_cpu_devices(4)
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=x --xla_force_host_platform_device_count=4"


@pytest.mark.parametrize("platforms", ["cuda", "cuda,cpu", "tpu"])
def test_an_accelerator_that_was_asked_for_keeps_the_flags(environment, platforms):
    environment(JAX_PLATFORMS=platforms)
    ensure_cpu_devices()
    assert "XLA_FLAGS" not in os.environ
    share = CLUSTERS["h100"].allocator_share
    assert os.environ[SHARE] == str(share) and CLUSTERS["h100"].usable_memory < share * CLUSTERS["h100"].memory


def test_a_share_of_the_memory_that_the_user_has_set_stays_and_a_cpu_gets_none(environment):
    environment(JAX_PLATFORMS="cuda", **{FORMER: "0.6"})  # jax refuses both variables at once
    ensure_cpu_devices()
    assert os.environ[FORMER] == "0.6" and SHARE not in os.environ
    environment(**{SHARE: "0.5"})
    ensure_cpu_devices()
    assert os.environ[SHARE] == "0.5"
    environment(JAX_PLATFORMS="cpu")
    del os.environ[SHARE]
    ensure_cpu_devices()
    assert SHARE not in os.environ


@given(st.integers(1, 8), st.integers(1, 4))
def test_the_processes_of_a_host_share_its_gpus(processes, share):
    visible = processes * share
    ids = [local_device_ids(placed(local, processes), visible) for local in range(processes)]
    if processes == 1 or visible == 1:
        assert ids == [None] * processes
    else:
        assert sorted(sum(ids, [])) == list(range(visible)) and {len(part) for part in ids} == {share}


def test_a_launcher_that_hides_the_other_gpus_leaves_the_only_one():
    assert local_device_ids(placed(5, 8), visible=1) is None
    assert local_device_ids(placed(None, None), visible=8) is None


def test_a_number_within_the_host_without_a_count_is_that_of_the_gpu():
    assert local_device_ids(placed(5, None), visible=8) == [5]


@pytest.mark.parametrize(("local", "count", "visible"), [(0, 3, 8), (8, 8, 8), (8, None, 8), (0, 0, 8)])
def test_gpus_that_cannot_be_shared_are_refused(local, count, visible):
    with pytest.raises(UserError, match=rf"number {local} of \d on its host, which shows it {visible} GPUs"):
        local_device_ids(placed(local, count), visible)


@pytest.mark.parametrize(("visible", "count"), [("0,1,2", 3), ("", 0), ("-1", 0), ("GPU-1a, GPU-2b", 2)])
def test_visible_gpus(monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == count
