import pytest

from mmjax.launching.environment import process_environment


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("XLA_FLAGS", "--a=b --xla_force_host_platform_device_count=8 --c=d")
    return monkeypatch


def test_a_process_gets_its_place_in_the_run_on_the_loopback_interface(environment):
    environment.setenv("JAX_PLATFORMS", "cpu")
    variables = process_environment(1, processes=3, devices=2, port=1234, slot=1)
    assert {name: value for name, value in variables.items() if name.startswith("JAX_") and "PROCESS" in name} == {
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "1",
    }
    assert variables["JAX_COORDINATOR_ADDRESS"] == variables["JAX_COORDINATOR_BIND_ADDRESS"] == "127.0.0.1:1234"
    assert variables["XLA_FLAGS"].split() == ["--a=b", "--c=d", "--xla_force_host_platform_device_count=2"]
    assert "SLURM_NTASKS" not in variables


def test_accelerators_are_dealt_out_in_order(environment):
    environment.setenv("JAX_PLATFORMS", "cuda")
    visible = [process_environment(rank, 2, 4, 1234, slot)["JAX_LOCAL_DEVICE_IDS"] for rank, slot in ((0, 0), (1, 2))]
    assert visible == ["0,1,2,3", "8,9,10,11"]


def test_a_single_process_is_left_alone(environment):
    environment.delenv("JAX_NUM_PROCESSES", raising=False)
    assert "JAX_NUM_PROCESSES" not in process_environment(0, processes=1, devices=None, port=1234, slot=0)
