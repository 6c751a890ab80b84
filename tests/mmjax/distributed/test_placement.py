"""The place of a process by the variables of each launcher, and launchers that contradict each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.common.errors import UserError
from mmjax.distributed.environments import LAUNCHER_VARIABLES, ProcessPlacement, first_host, tasks_of_node
from mmjax.distributed.placement import find_placement, other_launchers
from mmjax.distributed.variables import Variables

JAX = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "16", "JAX_PROCESS_ID": "9"}
TORCHRUN = {
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
}
SLURM = {
    "SLURM_JOB_ID": "4098",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_RANK": "9",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
    "OMPI_MCA_orte_hnp_uri": "8192.0;tcp://10.0.0.1,10.1.0.1:34911",
}
JOBSET = {
    "JOBSET_NAME": "train",
    "REPLICATED_JOB_NAME": "nodes",
    "JOB_COMPLETION_INDEX": "9",
    "JAX_NUM_PROCESSES": "16",
}
TPU = {"TPU_WORKER_HOSTNAMES": "t0,t1,t2,t3", "TPU_WORKER_ID": "1"}


def place(variables: dict[str, str]) -> ProcessPlacement | None:
    return find_placement(Variables(variables))


@pytest.mark.parametrize(
    ("variables", "coordinator", "local"),
    [
        (JAX, "a:1", (None, None)),
        ({**JAX, "JAX_PROCESS_ID": "", "JOB_COMPLETION_INDEX": "9"}, "a:1", (None, None)),  # a Kubernetes Indexed Job
        (JOBSET, "train-nodes-0-0.train:8476", (None, None)),
        (
            {
                **JOBSET,
                "JOBSET_JOBS": "2",
                "JOBSET_JOB_INDEX": "1",
                "JOB_COMPLETION_INDEX": "1",
                "JOBSET_SUBDOMAIN": "net",
            },
            "train-nodes-0-0.net:8476",
            (None, None),
        ),
        (TORCHRUN, "node1:29500", (1, 8)),
        ({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, "node1:29501", (1, 8)),
        ({**TORCHRUN, "JAX_COORDINATOR_PORT": "77"}, "node1:77", (1, 8)),
        (SLURM, "node07:61442", (1, 8)),
        (OPEN_MPI, "10.0.0.1:61442", (1, 8)),
        ({**OPEN_MPI, "OMPI_MCA_orte_hnp_uri": "8192.0;tcp6://[fe80::1,fe80::2]:43370"}, "[fe80::1]:61442", (1, 8)),
        ({**OPEN_MPI, "JAX_COORDINATOR_ADDRESS": "a:1"}, "a:1", (1, 8)),
        (
            {
                "PMI_SIZE": "16",
                "PMI_RANK": "9",
                "MPI_LOCALRANKID": "1",
                "MPI_LOCALNRANKS": "8",
                "JAX_COORDINATOR_ADDRESS": "a:1",
            },
            "a:1",
            (1, 8),
        ),
        (
            {"MV2_COMM_WORLD_SIZE": "16", "MV2_COMM_WORLD_RANK": "9", "JAX_COORDINATOR_ADDRESS": "a:1"},
            "a:1",
            (None, None),
        ),
        (
            {
                **TPU,
                "MEGASCALE_COORDINATOR_ADDRESS": "m:9",
                "MEGASCALE_NUM_SLICES": "4",
                "MEGASCALE_SLICE_ID": "2",
            },
            "m:8482",
            (None, None),
        ),
    ],
)
def test_the_place_of_a_process(variables, coordinator, local):
    assert place(variables) == ProcessPlacement(
        coordinator=coordinator, processes=16, process=9, local_process=local[0], local_processes=local[1]
    )


def test_the_first_host_of_tpus_is_process_0():
    assert place(TPU) == ProcessPlacement(coordinator="t0:8482", processes=4, process=1)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURM_NTASKS": "1"},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"WORLD_SIZE": "1", "RANK": "0"},
        {"PMI_SIZE": "1"},
        {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"},
        {"JOB_COMPLETION_INDEX": "3"},  # jobs of one pod each, such as a search over parameters
    ],
)
def test_one_process_needs_no_others(variables):
    assert place(variables) is None and not other_launchers(Variables(variables))


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "a:1.*but not JAX_NUM_PROCESSES and JAX_PROCESS_ID or JOB_COMPLETION_IN"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "but not JAX_COORDINATOR_ADDRESS: set all of"),
        ({**JAX, "JAX_PROCESS_ID": "16"}, r"this is process 16, which is not in 0\.\.15"),
        ({**JAX, "JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES is 'two'"),
        ({**JAX, "JAX_NUM_PROCESSES": "9" * 5000}, "JAX_NUM_PROCESSES is '999"),
        (
            {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
            r"Slurm \(SLURM_NTASKS = 4\) says that this is one of 4, but without SLURM_STEP_NODELIST they can't be "
            "joined.*separate runs in one workdir are refused: start the command by srun",
        ),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "without JAX_COORDINATOR_ADDRESS or OMPI_MCA_orte_hnp_uri and OMPI_COMM_WORLD"),
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, r"MPI \(PMI\).*set JAX_COORDINATOR_ADDRESS to host:port of process 0"),
        ({"WORLD_SIZE": "4"}, "torchrun.*without MASTER_ADDR and MASTER_PORT and RANK"),
        ({"JOBSET_NAME": "x"}, "JobSet.*one of several processes, but without REPLICATED_JOB_NAME and JOB_COMPLETION"),
        ({**JOBSET, "JOBSET_JOBS": "3"}, "JAX_NUM_PROCESSES = 16 is not a multiple of JOBSET_JOBS = 3"),
        ({**OPEN_MPI, "OMPI_MCA_orte_hnp_uri": "nonsense"}, "OMPI_MCA_orte_hnp_uri is 'nonsense'"),
        # Two launchers that contradict each other.
        ({**JAX, "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0", "SLURM_NTASKS": "4"}, "Slurm .*is one of 4 proc"),
        ({**SLURM, **TORCHRUN, "RANK": "0"}, r"WORLD_SIZE = 16\) .*process 0 of 16, but Slurm .*it is process 9"),
        ({**SLURM, **TORCHRUN, "WORLD_SIZE": "10"}, r"torchrun .*process 9 of 10, but Slurm .*one of 16 processes"),
    ],
)
def test_processes_that_cannot_be_joined_are_refused(variables, reason):
    with pytest.raises(UserError, match=reason):
        place(variables)


def test_a_launcher_inside_another_one_is_taken():
    once_a_node = {**SLURM, "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
    assert place({**once_a_node, **TORCHRUN}) == place(TORCHRUN)
    assert place({**SLURM, **JAX}) == place(JAX)


VALUES = st.sampled_from(["", "0", "1", "7", "16", "-1", "x", "a:1", "a[", "1.0;tcp://b:2", "²", "9" * 30])


@given(st.dictionaries(st.sampled_from(sorted(LAUNCHER_VARIABLES | SLURM.keys() | TORCHRUN.keys())), VALUES))
def test_whatever_the_variables_are_they_place_the_process_or_are_refused(variables):
    try:
        placement = place(variables)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert placement is None or 0 <= placement.process < placement.processes


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node001", "node001"),
        ("node001,host2", "node001"),
        ("node[001-0015],host2", "node001"),
        ("rack[1-2,9]n[07,8]x,login", "rack1n07x"),
    ],
)
def test_the_first_of_a_list_of_hosts(nodes, first):
    assert first_host(nodes) == first


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_tasks_of_a_node(counts, data):
    node = data.draw(st.integers(0, len(counts) - 1))
    runs = ",".join(f"{count}(x1)" if data.draw(st.booleans()) else str(count) for count in counts)
    assert tasks_of_node(runs, node) == counts[node]
    assert tasks_of_node(f"3(x{node + 1}),{runs}", node) == 3
    assert tasks_of_node(runs, len(counts)) is None and tasks_of_node("", node) is None
