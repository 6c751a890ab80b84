"""A pipeline as one program and as dispatched programs, compiled for eight H100s: memory, and what hides its permutes.

The model is Llama3-8B on rows of 8,192 tokens, eight microbatches of one row. Weights, their gradients and the batch
are not counted. Of one program, a device's bytes are its temporaries; of two, the temporaries of the one that has more,
and what the second takes of the first and of the generator. Of dispatched programs they are the bytes of the stage that
needs most: what its forwards save and their inputs, times the microbatches that 1F1B has in flight there, and the
temporaries of a forward with its output, or of a backward with the gradients that it gets and sends, whichever are
more.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax

from benchmarks.h100_schedule.compilation import DEVICES, tensor_mesh
from benchmarks.h100_schedule.report import GEMMS, H100, MIB, format_table, seconds_to_send
from benchmarks.memory.cases import MemoryCase, empty_batch_spec
from benchmarks.memory.compiled_stages import abstract_stage_programs
from configs.architectures import ModelConfig, UNetConfig
from mmjax.training.dry_run.overlap import Collective, executions, find_collectives
from mmjax.training.dry_run.scheduled_hlo import ScheduledProgram, parse_scheduled_hlo, result_bytes
from mmjax.training.dry_run.stage_bytes import device_bytes
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import ExecutorName, UnitPlan
from sharding.runtime.stages.compilation import ProgramCall, stage_calls
from sharding.specs.layers.layer import RecomputePolicy

MICROBATCHES, TOKENS = 8, 8192
ATTENTION = "cudnn"
EXECUTORS: tuple[tuple[ExecutorName, str, bool], ...] = (
    ("dispatched", "1f1b", False),
    ("compiled", "1f1b", False),
    ("dispatched", "1f1b", True),
    ("compiled", "1f1b", True),
)
"""Cases by schedule, and by whether the backbone feeds a generator."""
RECOMPUTE: tuple[RecomputePolicy, ...] = ("full", "none")


class PipelineCase(NamedTuple):
    """A pipeline on all eight devices, each stage on a pipeline rank of tensor ranks; and who computes its matmuls.

    A generator behind it is on the first device.
    """

    ranks: int
    recompute: RecomputePolicy
    executor: ExecutorName
    schedule: str
    generator: bool
    gemms: str

    def plan(self, depth: int) -> Plan:
        """The plan for a backbone of so many layers."""
        unit = UnitPlan(
            "backbone",
            ("backbone",),
            tuple(range(DEVICES)),
            layers=(depth // self.ranks,) * self.ranks,
            recompute=(self.recompute,) * self.ranks,
            executor=self.executor,
            parallelism=Parallelism(tp=DEVICES // self.ranks),
        )
        generator = UnitPlan("generator", ("generator",), (0,))
        return Plan((unit, generator) if self.generator else (unit,), MICROBATCHES, self.schedule)

    def in_flight(self, stage: int) -> int:
        """Microbatches that a stage has in flight at most, in the order of 1F1B."""
        return min(MICROBATCHES, self.ranks - stage + self.generator)


CASES = [
    PipelineCase(
        ranks=ranks, recompute=recompute, executor=executor, schedule=schedule, generator=generator, gemms=gemms
    )
    for ranks in (4, 8)
    for recompute in RECOMPUTE
    for executor, schedule, generator in EXECUTORS
    for gemms in GEMMS
]


class Send(NamedTuple):
    """A permute to the next or to the previous pipeline rank.

    Attributes:
        forward: Whether it sends activations, not gradients.
        ticks: How many ticks of a step issue it.
        collective: The permute, with the matmuls issued while it runs.
        written: Bytes that other kernels issued meanwhile write.
    """

    forward: bool
    ticks: int
    collective: Collective
    written: int

    @property
    def beside_writes(self) -> bool:
        """Whether these kernels write for as long as it takes to send, both by the data sheet."""
        return self.written / H100.memory_bandwidth >= seconds_to_send(self.collective, DEVICES)


class PipelineBytes(NamedTuple):
    """Bytes of a pipeline on a device.

    Attributes:
        stage: The stage that needs most, of dispatched programs; of one program -1.
        state: Bytes of weights and of their float32 gradients, of that stage.
        saved: Bytes that microbatches in flight keep outside of programs, or between the two of a pipeline.
        temporary: Bytes of temporaries, and of what a stage's program gets and sends.
    """

    stage: int
    state: int
    saved: int
    temporary: int

    @property
    def total(self) -> int:
        """Bytes of a device without the state."""
        return self.saved + self.temporary


class PipelineReport(NamedTuple):
    """Figures of a case; dispatched programs have no permutes."""

    case: PipelineCase
    bytes: PipelineBytes
    sends: list[Send]

    def as_json(self) -> dict[str, Any]:
        """All figures as one JSON object."""
        sends = [send._asdict() | {"collective": dataclasses.asdict(send.collective)} for send in self.sends]
        return self.case._asdict() | self.bytes._asdict() | {"sends": sends}


def measure_pipelines(cases: Iterable[PipelineCase] = CASES) -> Iterator[PipelineReport]:
    """Compiles all cases."""
    llama = MemoryCase(name="Llama3-8B", gin_file="models/internvit_6b_llama3_8b.gin", module="backbone", stages=1)
    config, devices = llama.model(), list(tensor_mesh(DEVICES).devices.flat)
    with jax.numpy_dtype_promotion("standard"), use_attention_implementation(ATTENTION):
        for case in cases:
            generators = (UNetConfig(),) if case.generator else ()
            yield _measure(dataclasses.replace(config, generators=generators), case, devices)


def _measure(config: ModelConfig, case: PipelineCase, devices: list[Any]) -> PipelineReport:
    batch_spec = empty_batch_spec(config, MICROBATCHES, TOKENS, {}, images=len(config.generators))
    programs = abstract_stage_programs(config, case.plan(config.backbone.depth), batch_spec, devices, ATTENTION)
    calls = {stage: stage_calls((program,)).calls for (unit, stage), program in programs.items() if unit == "backbone"}
    if case.executor == "compiled":
        return _of_two_programs(case, *calls[0]) if case.generator else _of_one_program(case, *calls[0])
    different = (0, 1, case.ranks - 1)  # the stages between are like the second, with fewer microbatches in flight
    stage_sizes = [_of_stage(case, stage, *calls[stage][-2:]) for stage in different]
    return PipelineReport(case, max(stage_sizes, key=lambda sizes: sizes.total), [])


def _compile(case: PipelineCase, call: ProgramCall) -> Any:
    return call.program.lower(*call.arguments).compile(compiler_options=dict(GEMMS[case.gemms]))


def _of_one_program(case: PipelineCase, step: ProgramCall) -> PipelineReport:
    compiled = _compile(case, step)
    analysis = compiled.memory_analysis()
    state = device_bytes(step.arguments[0]) + analysis.output_size_in_bytes  # besides gradients it returns a loss
    taken = PipelineBytes(-1, state, 0, analysis.temp_size_in_bytes)
    return PipelineReport(case, taken, find_sends(parse_scheduled_hlo(compiled.as_text())))


def _of_two_programs(case: PipelineCase, step: ProgramCall, backward: ProgramCall) -> PipelineReport:
    compiled = [_compile(case, call) for call in (step, backward)]
    weights, *_, saved_state, output_gradients, gradients = backward.arguments
    taken = PipelineBytes(
        stage=-1,
        state=device_bytes((weights, gradients)),
        saved=device_bytes((saved_state, output_gradients)),
        temporary=max(program.memory_analysis().temp_size_in_bytes for program in compiled),
    )
    return PipelineReport(
        case, taken, [send for program in compiled for send in find_sends(parse_scheduled_hlo(program.as_text()))]
    )


def _of_stage(case: PipelineCase, stage: int, forward: ProgramCall, backward: ProgramCall) -> PipelineBytes:
    forward_bytes, backward_bytes = (
        _compile(case, call).memory_analysis().temp_size_in_bytes for call in (forward, backward)
    )
    weights, inputs, *_, residuals, outputs, gradients = backward.arguments
    sent, received = device_bytes(outputs), device_bytes(inputs)
    return PipelineBytes(
        stage=stage,
        state=device_bytes((weights, gradients)),
        saved=case.in_flight(stage) * (device_bytes(residuals) + received),
        temporary=max(forward_bytes + sent, backward_bytes + sent + received),
    )


def find_sends(program: ScheduledProgram) -> list[Send]:
    """The permutes of a pipeline that has no others, by order of issue."""
    times = executions(program)
    return [
        Send(
            _goes_up(program, collective),
            times[collective.computation],
            collective,
            _written_beside(program, collective),
        )
        for collective in find_collectives(program)
        if collective.kind == "collective-permute"
    ]


def _goes_up(program: ScheduledProgram, collective: Collective) -> bool:
    """Whether it sends to devices of higher numbers, which belong to later stages."""
    _, pairs = program.computations[collective.computation][collective.name].rest.split("source_target_pairs={{")
    source, target = pairs.split("}")[0].split(",")
    return int(source) < int(target)


def _written_beside(program: ScheduledProgram, collective: Collective) -> int:
    """Bytes of the results of fusions from its start to its done, without fusions that write into an array in place."""
    if collective.synchronous:
        return 0
    instructions = program.computations[collective.computation].instructions
    start = next(at for at, instruction in enumerate(instructions) if instruction.name == collective.name)
    done = next((at for at, instruction in enumerate(instructions) if collective.name in instruction.operands), None)
    return sum(
        result_bytes(instruction.type)
        for instruction in instructions[start + 1 : done]
        if instruction.opcode == "fusion"
        and not any(
            inner.opcode == "dynamic-update-slice"
            for called in program.called_by(instruction)
            for inner in called.instructions
        )
    )


def format_pipelines(reports: list[PipelineReport]) -> str:
    """Tables for people: of memory, and of permutes."""
    memory = [
        (*_names(case), "" if taken.stage < 0 else f"{taken.stage}", *(_mib(n) for n in (*taken[1:], taken.total)))
        for case, taken, _ in reports
    ]
    permutes = [
        (
            *_names(case),
            "forward" if forward else "backward",
            *_counts([send for send in sends if send.forward == forward]),
        )
        for case, _, sends in reports
        for forward in (True, False)
        if sends
    ]
    names = ("pp", "recompute", "executor", "schedule", "generator", "gemms")
    sizes = ("stage", "weights and gradients (MiB)", "saved (MiB)", "temporary (MiB)", "saved and temporary (MiB)")
    counts = ("pass", "permutes", "MiB each", "beside matmuls", "beside writes", "synchronous")
    return f"{format_table((*names, *sizes), memory)}\n\n{format_table((*names, *counts), permutes)}"


def _names(case: PipelineCase) -> list[str]:
    ranks, *names, generator, gemms = case
    return [f"{ranks}", *names, "yes" if generator else "", gemms]


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f}"


def _counts(sends: list[Send]) -> list[str]:
    """Counts the permutes of a step: their number, size, and how many run beside matmuls or writes."""
    kinds = (lambda send: True, lambda send: send.collective.hidden, lambda send: send.beside_writes)
    step, *beside = (str(sum(send.ticks for send in sends if kind(send))) for kind in kinds)
    synchronous = str(sum(send.ticks for send in sends if send.collective.synchronous))
    return [step, _mib(max(send.collective.size for send in sends)), *beside, synchronous]
