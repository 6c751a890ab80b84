"""`python -m benchmarks.packed_attention`: attention in blocks against the square, forward and backward, on this CPU.

Both take turns in one process, so that their ratio is right also on a machine that others use. The rules by which
`packed_attention` chooses on CPUs (`segment_mask.MAX_DENSE_PAIRS`, `block_pairs.default_block_size`) rest on this.
"""

import dataclasses
import json

from benchmarks.command import run_benchmark
from benchmarks.timing import in_turns, timed_jax
from mmjax import cli

HEADS, KEY_HEADS, WIDTH = 8, 2, 64
CASES = (
    ("float32", 64, 64),
    ("float32", 128, 128),
    ("float32", 128, 32),
    ("float32", 256, 256),
    ("float32", 256, 64),
    ("float32", 512, 512),
    ("float32", 512, 128),
    ("float32", 1024, 1024),
    ("float32", 1024, 256),
    ("float32", 2048, 256),
    ("float32", 4096, 512),
    ("bfloat16", 512, 128),
    ("bfloat16", 2048, 256),
)
"""Precision, positions of a row, and positions of each of its segments."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedAttentionArguments(cli.JsonArguments):
    """Flags of the command."""

    rounds: int = cli.flag(5, "Times that each is timed.", metavar="N", parse=cli.integer(1))


def main(arguments: PackedAttentionArguments) -> int:
    """Measures and prints."""
    from benchmarks.rows import package_versions

    cases = [measure(*case, arguments.rounds) for case in CASES]
    result = {"cases": cases, "blocks": blocks(arguments.rounds), "versions": package_versions()}
    print(json.dumps(result) if arguments.json else describe(result))
    return 0


def measure(dtype: str, length: int, segment: int, rounds: int) -> dict:
    """Seconds of either form in turns, and the bytes that each needs in addition to its arguments and results."""
    import numpy as np

    arguments = arrays(length, segment, dtype)
    programs = {form: program(form, None, arguments) for form in ("dense", "blocked")}
    times = in_turns({form: timed_jax(compiled, arguments) for form, compiled in programs.items()}, rounds)
    seconds = np.array(list(times.values())).T
    return {
        "dtype": dtype,
        "length": length,
        "segment": segment,
        "seconds": dict(zip(programs, np.median(seconds, axis=0).tolist(), strict=True)),
        "ratio": np.quantile(seconds[:, 0] / seconds[:, 1], (0.5, 0.25, 0.75)).tolist(),
        "bytes": {form: compiled.memory_analysis().temp_size_in_bytes for form, compiled in programs.items()},
    }


def blocks(rounds: int) -> list[dict]:
    """Seconds by the size of the blocks, over the seconds with blocks of 64, timed in turns."""
    import numpy as np

    results = []
    for length, segment in ((512, 128), (2048, 512)):
        arguments, sizes = arrays(length, segment, "float32"), (32, 64, 128, 256)
        programs = {str(size): timed_jax(program("blocked", size, arguments), arguments) for size in sizes}
        seconds = np.array(list(in_turns(programs, rounds).values())).T
        ratios = np.median(seconds / seconds[:, 1:2], axis=0)
        results.append({"length": length, "segment": segment, "of_64": dict(zip(sizes, ratios.tolist(), strict=True))})
    return results


def arrays(length: int, segment: int, dtype: str) -> tuple:
    """Query, key, value and segments of one row."""
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)
    projections = (
        jnp.asarray(random.normal(size=(1, length, heads, WIDTH)), dtype) for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    return *projections, jnp.asarray(np.arange(length)[None] // segment + 1, jnp.int32)


def program(form: str, block: int | None, arguments: tuple):
    """Causal attention and its three gradients, compiled."""
    import jax
    import jax.numpy as jnp

    from pallas_kernels.packed_attention import make_segment_mask, packed_attention

    def loss(query, key, value, segments):
        mask = make_segment_mask(segments, causal=True, block=block)
        return jnp.sum(packed_attention(query, key, value, mask, implementation=form).astype(jnp.float32) ** 2)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).lower(*arguments).compile()


def describe(result: dict) -> str:
    """The figures as tables of Markdown."""
    lines = [
        "| | row | segments of | dense | blocked | dense / blocked | middle half | dense, memory | blocked, memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in result["cases"]:
        times = " | ".join(f"{case['seconds'][form] * 1e3:.1f} ms" for form in ("dense", "blocked"))
        memory = " | ".join(f"{case['bytes'][form] / 1e6:.1f} MB" for form in ("dense", "blocked"))
        median, low, high = case["ratio"]
        lines.append(
            f"| {case['dtype']} | {case['length']} | {case['segment']} | {times} "
            f"| {median:.1f} | {low:.1f} to {high:.1f} | {memory} |"
        )
    lines += ["", "| row | segments of | " + " | ".join(f"blocks of {size}" for size in (32, 64, 128, 256)) + " |"]
    lines.append("|---" * 6 + "|")
    for case in result["blocks"]:
        ratios = " | ".join(f"{ratio:.2f}" for ratio in case["of_64"].values())
        lines.append(f"| {case['length']} | {case['segment']} | {ratios} |")
    return "\n".join([*lines, "", str(result["versions"])])


if __name__ == "__main__":
    run_benchmark(
        main,
        PackedAttentionArguments,
        name="benchmarks.packed_attention",
        summary="Times attention in blocks against the square, forward and backward, on this CPU.",
        examples=("--rounds=3",),
    )
