"""The environment variables by which launchers tell the processes of a run their number, count and addresses.

There is a `ClusterEnvironment` for each launcher; `placement.py` chooses between them.

Where a launcher sets only the number of processes and the rank of this one (MPI), `JAX_COORDINATOR_ADDRESS` is the
address of process 0. `JAX_COORDINATOR_PORT` replaces the port that is chosen here.
"""

import dataclasses
import functools
import re
from collections.abc import Callable

from configs.common.errors import UserError
from mmjax.distributed.variables import Variables

KUBERNETES_PORT = 8476
"""Port of process 0 in the pods of a JobSet."""

TPU_PORT = 8482
"""Port of process 0 on hosts of TPUs, as jax chooses it."""

EPHEMERAL_PORTS = range(61440, 65536)
"""Ports among which the number of a job chooses, as in jax."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessPlacement:
    """The place of this process among the processes of a run.

    Attributes:
        coordinator: Address at which process 0 listens, `host:port`.
        processes: Number of processes of the run.
        process: Number of this process, from 0.
        local_process: Its number among the processes of its host; None if the launcher does not set it.
        local_processes: Number of processes of the host; None if the launcher does not set it.
    """

    coordinator: str
    processes: int
    process: int
    local_process: int | None = None
    local_processes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterEnvironment:
    """The variables of a kind of launcher.

    Attributes:
        name: The launcher's name in messages.
        signs: Variables of which at least one is set in every process that it starts.
        needs: Variables without which the place of a process is not known; of each group one is enough.
        count: Number of processes of the run; None if it is not known.
        read: Reads the place of this process; called where no needed variable is missing.
        remedy: Advice on how to set the missing variables.
    """

    name: str
    signs: tuple[str, ...]
    needs: tuple[tuple[str, ...], ...]
    count: Callable[[Variables], int | None]
    read: Callable[[Variables], ProcessPlacement]
    remedy: str

    def is_present(self, variables: Variables) -> bool:
        """Whether this launcher started the process as one of several, or may have."""
        return any(variables.has(sign) for sign in self.signs) and self.count(variables) != 1

    def missing(self, variables: Variables) -> list[str]:
        """Names the needed variables that are not set; a group as `A or B`."""
        return [" or ".join(group) for group in self.needs if not any(variables.has(name) for name in group)]

    def describe(self, variables: Variables) -> str:
        """Describes the launcher by its name, and the signs with their values."""
        signs = (f"{sign} = {variables.text(sign)}" for sign in self.signs if variables.has(sign))
        return f"{self.name} ({', '.join(signs)})"


def _counted_by(name: str) -> Callable[[Variables], int | None]:
    return lambda variables: variables.optional_number(name)


# ------------------------------------------------------------------ explicit variables, Kubernetes Indexed Jobs


def _read_jax(variables: Variables) -> ProcessPlacement:
    process = "JAX_PROCESS_ID" if variables.has("JAX_PROCESS_ID") else "JOB_COMPLETION_INDEX"
    return ProcessPlacement(
        coordinator=variables.text("JAX_COORDINATOR_ADDRESS"),
        processes=variables.number("JAX_NUM_PROCESSES"),
        process=variables.number(process),
    )


JAX_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")

EXPLICIT = ClusterEnvironment(
    name="the JAX_* variables",
    signs=JAX_VARIABLES,
    needs=(("JAX_COORDINATOR_ADDRESS",), ("JAX_NUM_PROCESSES",), ("JAX_PROCESS_ID", "JOB_COMPLETION_INDEX")),
    # One explicit process is a claim too: other launchers must not have started more.
    count=lambda variables: None,
    read=_read_jax,
    remedy=f"set all of {', '.join(JAX_VARIABLES)} for a run of several processes, or none of them",
)


# ------------------------------------------------------------------ Kubernetes JobSet


def _read_jobset(variables: Variables) -> ProcessPlacement:
    jobset, processes = variables.text("JOBSET_NAME"), variables.number("JAX_NUM_PROCESSES")
    jobs = variables.number("JOBSET_JOBS") if variables.has("JOBSET_JOBS") else 1
    job = variables.number("JOBSET_JOB_INDEX") if variables.has("JOBSET_JOB_INDEX") else 0
    if not jobs or processes % jobs:
        raise UserError(f"JAX_NUM_PROCESSES = {processes} is not a multiple of JOBSET_JOBS = {jobs}")
    host = f"{jobset}-{variables.text('REPLICATED_JOB_NAME')}-0-0.{variables.text('JOBSET_SUBDOMAIN', jobset)}"
    return ProcessPlacement(
        coordinator=f"{host}:{_port(variables, KUBERNETES_PORT)}",
        processes=processes,
        process=job * (processes // jobs) + variables.number("JOB_COMPLETION_INDEX"),
    )


JOBSET = ClusterEnvironment(
    name="a Kubernetes JobSet",
    signs=("JOBSET_NAME",),
    needs=(("REPLICATED_JOB_NAME",), ("JOB_COMPLETION_INDEX",), ("JAX_NUM_PROCESSES",)),
    count=_counted_by("JAX_NUM_PROCESSES"),
    read=_read_jobset,
    remedy="set them as examples/kubernetes/jobset.yaml does",
)


# ------------------------------------------------------------------ torchrun and what follows its convention


def _read_torchrun(variables: Variables) -> ProcessPlacement:
    port = variables.number("MASTER_PORT")
    if variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # torchrun itself listens at MASTER_PORT
    return ProcessPlacement(
        coordinator=f"{variables.text('MASTER_ADDR')}:{_port(variables, port)}",
        processes=variables.number("WORLD_SIZE"),
        process=variables.number("RANK"),
        local_process=variables.optional_number("LOCAL_RANK"),
        local_processes=variables.optional_number("LOCAL_WORLD_SIZE"),
    )


TORCHRUN = ClusterEnvironment(
    name="torchrun",
    signs=("WORLD_SIZE",),
    needs=(("MASTER_ADDR",), ("MASTER_PORT",), ("RANK",)),
    count=_counted_by("WORLD_SIZE"),
    read=_read_torchrun,
    remedy="set them in every process, as torchrun does",
)


# ------------------------------------------------------------------ MPI


def _read_open_mpi(variables: Variables) -> ProcessPlacement:
    placement = _read_mpi(OPEN_MPI_NAMES, variables)
    if placement.coordinator:
        return placement
    uri = variables.text("OMPI_MCA_orte_hnp_uri")
    parsed = re.match(r"(\d{1,18})\.\d+;tcp6?://(?:\[([^,\]]+)|([^,:\[\]]+))", uri, re.ASCII)
    if not parsed:
        raise UserError(f"OMPI_MCA_orte_hnp_uri is {uri!r} in the environment; it must name the address of mpirun")
    host = f"[{parsed[2]}]" if parsed[2] else parsed[3]
    port = _port(variables, EPHEMERAL_PORTS[int(parsed[1]) // 4096 % 4096])  # job numbers are multiples of 4096
    return dataclasses.replace(placement, coordinator=f"{host}:{port}")


def _read_mpi(names: tuple[str, str, str, str], variables: Variables) -> ProcessPlacement:
    size, rank, local_rank, local_size = names
    return ProcessPlacement(
        coordinator=variables.text("JAX_COORDINATOR_ADDRESS"),
        processes=variables.number(size),
        process=variables.number(rank),
        local_process=variables.optional_number(local_rank),
        local_processes=variables.optional_number(local_size),
    )


def _mpi(name: str, names: tuple[str, str, str, str]) -> ClusterEnvironment:
    """The environment of an MPI, from its variables for the size, the rank, and the size and rank within the host."""
    return ClusterEnvironment(
        name=name,
        signs=names[:1],
        needs=(("JAX_COORDINATOR_ADDRESS",), names[1:2]),
        count=_counted_by(names[0]),
        read=functools.partial(_read_mpi, names),
        remedy="set JAX_COORDINATOR_ADDRESS to host:port of process 0",
    )


OPEN_MPI_NAMES = (
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
OPEN_MPI = dataclasses.replace(
    _mpi("Open MPI", OPEN_MPI_NAMES),
    needs=(("JAX_COORDINATOR_ADDRESS", "OMPI_MCA_orte_hnp_uri"), ("OMPI_COMM_WORLD_RANK",)),
    read=_read_open_mpi,
)
MPI = _mpi("MPI (PMI)", ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"))
MVAPICH2 = _mpi(
    "MVAPICH2",
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
)


# ------------------------------------------------------------------ Slurm


def _read_slurm(variables: Variables) -> ProcessPlacement:
    job_port = EPHEMERAL_PORTS[variables.number("SLURM_JOB_ID") % len(EPHEMERAL_PORTS)]
    return ProcessPlacement(
        coordinator=f"{first_host(variables.text('SLURM_STEP_NODELIST'))}:{_port(variables, job_port)}",
        processes=variables.number("SLURM_NTASKS"),
        process=variables.number("SLURM_PROCID"),
        local_process=variables.number("SLURM_LOCALID"),
        local_processes=tasks_of_node(
            variables.text("SLURM_STEP_TASKS_PER_NODE"), variables.optional_number("SLURM_NODEID") or 0
        ),
    )


def first_host(nodes: str) -> str:
    """The first of a list of hosts as Slurm writes it, such as `rack[1-2]n[01-04,7],login`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else nodes)


def tasks_of_node(counts: str, node: int) -> int | None:
    """Number of tasks of a node, from a list such as `8(x2),4`; None if the list does not have the node."""
    for entry in counts.split(","):
        parsed = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", entry, re.ASCII)
        if not parsed:
            return None
        node -= int(parsed[2] or 1)
        if node < 0:
            return int(parsed[1])
    return None


SLURM = ClusterEnvironment(
    name="Slurm",
    signs=("SLURM_NTASKS",),
    needs=(("SLURM_JOB_ID",), ("SLURM_STEP_NODELIST",), ("SLURM_PROCID",), ("SLURM_LOCALID",)),
    count=_counted_by("SLURM_NTASKS"),
    read=_read_slurm,
    remedy="start the command by srun",
)


# ------------------------------------------------------------------ TPUs in Google Kubernetes Engine


def _tpu_hosts(variables: Variables) -> list[str]:
    hosts = variables.text("TPU_PROCESS_ADDRESSES") or variables.text("TPU_WORKER_HOSTNAMES")
    return [host.strip() for host in hosts.split(",")]


def _tpu_count(variables: Variables) -> int:
    return len(_tpu_hosts(variables)) * (variables.optional_number("MEGASCALE_NUM_SLICES") or 1)


def _read_tpu(variables: Variables) -> ProcessPlacement:
    hosts = _tpu_hosts(variables)
    host = (variables.text("MEGASCALE_COORDINATOR_ADDRESS") or hosts[0]).split(":")[0]
    slice_number = variables.optional_number("MEGASCALE_SLICE_ID") or 0
    return ProcessPlacement(
        coordinator=f"{host}:{_port(variables, TPU_PORT)}",
        processes=_tpu_count(variables),
        process=slice_number * len(hosts) + variables.number("TPU_WORKER_ID"),
    )


TPU = ClusterEnvironment(
    name="TPUs in Google Kubernetes Engine",
    signs=("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES"),
    needs=(("TPU_WORKER_ID",),),
    count=_tpu_count,
    read=_read_tpu,
    remedy=f"set {', '.join(JAX_VARIABLES)} in every process",
)


def _port(variables: Variables, default: int) -> int:
    port = variables.optional_number("JAX_COORDINATOR_PORT")
    return default if port is None else port


ENVIRONMENTS = (EXPLICIT, JOBSET, TORCHRUN, OPEN_MPI, MPI, MVAPICH2, SLURM, TPU)
"""The first complete environment is taken, so a launcher stands before the launchers inside which it may run."""

LAUNCHER_VARIABLES = frozenset(
    name for environment in ENVIRONMENTS for group in (environment.signs, *environment.needs) for name in group
)
"""Variables that a process whose place is another one must not have."""
