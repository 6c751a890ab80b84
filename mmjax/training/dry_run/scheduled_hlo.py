"""Reads a program as XLA has scheduled it: its instructions by computation, in the order in which they are issued."""

import dataclasses
import math
import re
from collections.abc import Iterator

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_BITS = {"pred": 8, "s4": 4, "u4": 4, "token": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction, which is one line of the text.

    Attributes:
        name: Its name, unique in the program.
        type: Type of its result as text, such as `bf16[8,16]{1,0}` or a tuple of these.
        opcode: Its operation, such as `fusion` or `collective-permute-start`.
        operands: Names of the instructions whose results it takes.
        called: Names of the computations that it runs.
        rest: Its attributes as text.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    rest: str


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions in order. In a scheduled program this is the order in which they are issued."""

    name: str
    instructions: tuple[Instruction, ...]

    def __getitem__(self, name: str) -> Instruction:
        return next(instruction for instruction in self.instructions if instruction.name == name)


@dataclasses.dataclass(frozen=True)
class ScheduledProgram:
    """All computations by name, and which of them runs first."""

    computations: dict[str, Computation]
    entry: str

    def called_by(self, instruction: Instruction) -> list[Computation]:
        """The computations that an instruction runs."""
        return [self.computations[name] for name in instruction.called if name in self.computations]

    def issued(self) -> Iterator[Computation]:
        """The entry and every computation that is issued by loops, calls and conditionals, but no fusions."""
        waiting, seen = [self.entry], set()
        while waiting:
            name = waiting.pop(0)
            if name in seen:
                continue
            seen.add(name)
            yield self.computations[name]
            for instruction in self.computations[name].instructions:
                if instruction.opcode in ("while", "call", "conditional"):
                    waiting += [called.name for called in self.called_by(instruction)]


def parse_scheduled_hlo(text: str) -> ScheduledProgram:
    """Reads `compiled.as_text()`.

    Raises:
        ValueError: The program has no entry, or was not scheduled: the order of its lines would mean nothing.
    """
    if "is_scheduled=true" not in text.split("\n", 1)[0]:
        raise ValueError("the program was not scheduled; give what `compiled.as_text()` returns")
    computations: dict[str, Computation] = {}
    entry, name, lines = "", "", []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header and " = " not in line.split("(", 1)[0]:
            name, lines = header[2], []
            entry = name if header[1] else entry
        elif line.startswith("}") and name:
            computations[name] = Computation(name, tuple(lines))
            name = ""
        elif name and (match := _INSTRUCTION.match(line)):
            lines.append(_instruction(match[2], match[3]))
    if not entry:
        raise ValueError("the program has no ENTRY computation")
    return ScheduledProgram(computations, entry)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    type_, text = text[:end], text[end:].strip()
    opens = text.index("(")
    closes = _closing(text, opens)
    rest = text[closes + 1 :]
    called = _CALLED.findall(rest)
    for branches in _BRANCHES.findall(rest):
        called += _NAME.findall(branches)
    return Instruction(
        name=name,
        type=type_,
        opcode=text[:opens],
        operands=tuple(_NAME.findall(text[opens:closes])),
        called=tuple(called),
        rest=rest,
    )


def _closing(text: str, start: int) -> int:
    """Position at which the bracket that opens at `start` closes."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    raise ValueError(f"a bracket does not close: {text[:120]}")


def result_arrays(type_: str) -> list[tuple[str, tuple[int, ...]]]:
    """(element type, shape) of every array of a result."""
    arrays = _ARRAY.findall(re.sub(r"\{[^}]*\}", "", type_))
    return [(kind, tuple(map(int, filter(None, sizes.split(","))))) for kind, sizes in arrays]


def result_bytes(type_: str) -> int:
    """Bytes of a result, all arrays of a tuple together."""
    return sum(math.prod(shape) * _bits(kind) // 8 for kind, shape in result_arrays(type_))


def _bits(kind: str) -> int:
    return _BITS[kind] if kind in _BITS else int(re.findall(r"\d+", kind)[0])
