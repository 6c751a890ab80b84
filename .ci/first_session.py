"""A newcomer's first session, as a script: run by `.ci/run` with the `python` of an environment that has mmjax.

    python .ci/first_session.py

It trains, presses Ctrl-C and resumes, mistypes and breaks things, runs all examples and notebooks, and does what
README.md and docs/ show, block by block as it stands (`document_blocks`), in a folder of its own. It fails at the first
traceback, wrong exit code or error of more than a line.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable

from document_blocks import documents, read_blocks

HOME = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(HOME))
from tests.xla_flags import COMPILE_QUICKLY  # noqa: E402

ENVIRONMENT = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
"""As users have it, for the README."""
QUICK_ENVIRONMENT = {**ENVIRONMENT, "XLA_FLAGS": COMPILE_QUICKLY, "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
"""For all else, most of which is compiling for a few steps: `tiny.gin` takes 18 s of a core before the second step, and
55 s as users have it; a step takes 1.2 s instead of 0.5."""

MISTAKES = {
    "train --gin_file=tinny.gin": "tiny.gin",
    "train --gin_file=tiny.gin --gin.TrainConfg.steps=3": "TrainConfig",
    "train --gin_file=tiny.gin --gin.TrainConfig.step=3": "steps",
    "train --gin_file=tiny.gin --gin.TrainConfig.steps=\"'ten'\"": "'ten'",
    "train --gin_file=tiny.gin --gin.TrainConfig.steps=2.5": "2.5",
    "train --gin_file=tiny.gin --stepps=3": "--steps",
    "train --gin_file=tiny.gin --steps=3 --plan=picture.png": "picture.png",
    "train --gin_file=tiny.gin --steps=3 --workdir=picture.png": "picture.png",
    "train --gin_file=tiny.gin --steps=3 --workdir=gs://bucket/run": "not a local folder",
    "train --gin_file=tiny.gin --steps=3 --gin.DataConfig.tokens=8": "tokens",
    "train --gin_file=models/mllm_9b.gin": "TrainConfig.dataset",
    "train --resume": "--workdir",
    "train --gin_file=tiny.gin --workdir=nothing --resume": "nothing",
    "plan --gin_file=models/mllm_9b.gin --cluster=a8000": "a800",
    "plan --gin_file=models/mllm_9b.gin --output=nowhere/plan.json": "nowhere",
    "simulate --gin_file=models/mllm_9b.gin --plan=picture.png": "picture.png",
    "generate --workdir=nothing --prompt=why": "nothing",
    "verify --gin_file=tiny.gin --plan=nothing.json": "nothing.json",
}
"""Command lines with one mistake, and what their error must name."""


TESTED = ("own_data.py", "sweep.py", "wandb_run.py")
"""Examples that tests/examples/ runs as users do, and whose output it reads."""


PAGES = {
    "README.md": ("data.html", "step.html", "runs/short/report.html"),
    "docs/how_to/data.md": ("data.html",),
    "docs/tutorials/first_model.md": ("runs/first_model/report.html",),
    "docs/tutorials/one_plan.md": ("shared.html",),
    "docs/tutorials/own_data.md": ("pictures.html", "vicuna.html"),
    "docs/tutorials/read_a_timeline.md": ("lanes.html", "best.html"),
}
"""Pages that the blocks of a document write."""


def main() -> None:
    """Runs all parts, two at a time: most of each is planning, tracing and compiling, which one core does.

    The README comes first, because the pages of docs/ go on in what it has left, each in a copy. What trains the same
    model comes behind what plans or is refused, so that few compile the same programs at once.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(2) as pool:
        os.chdir(name)
        pathlib.Path("picture.png").write_bytes(bytes(range(256)) * 4)
        for folder in ("notebooks", "examples"):
            shutil.copytree(HOME / folder, folder)
        readme, *pages = documents(HOME)
        read = pool.submit(follow, readme)
        parts = [read, pool.submit(timed, make_mistakes.__name__, make_mistakes)]
        parts += [pool.submit(run_program, *program) for program in programs(shown_commands([readme, *pages]))]
        parts.append(pool.submit(timed, train_and_resume.__name__, train_and_resume))
        parts += [pool.submit(follow, page, read) for page in pages]
        for part in concurrent.futures.as_completed(parts):
            if part.exception():
                pool.shutdown(cancel_futures=True)
            part.result()
    print(f"first session: {time.monotonic() - begin:.0f} s")


def follow(document: pathlib.Path, before: "concurrent.futures.Future[str] | None" = None) -> str:
    """Runs the blocks of a document in order, as they stand, then its Python as one program; returns its folder.

    Args:
        document: The document.
        before: Returns the folder that is copied for it; without one, it is a new one with examples/.
    """
    folder = pathlib.Path("documents") / document.relative_to(HOME).with_suffix("")
    if before:
        shutil.copytree(before.result(), folder)
    else:
        shutil.copytree(HOME / "examples", folder / "examples")
    environment = QUICK_ENVIRONMENT if before else ENVIRONMENT
    program = ""
    for block in read_blocks(document, HOME):
        if not block.is_run:
            continue
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "bash":
            run_block(block.where, ["bash", "-euo", "pipefail", "-c", block.text], folder, environment)
        else:
            program += block.text
    if program:
        (folder / "program.py").write_text(program)
        run_block(f"{document.name}, Python", [sys.executable, "program.py"], folder, environment)
    for page in PAGES.get(str(document.relative_to(HOME)), ()):
        assert "</html>" in (folder / page).read_text()
    return str(folder)


def run_block(where: str, command: list[str], folder: pathlib.Path, environment: dict[str, str]) -> None:
    """Runs the commands of a block; what fails is told with its place."""
    try:
        timed(where, lambda: run(command, folder=str(folder), environment=environment))
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error


def make_mistakes() -> None:
    """Every mistake is answered in one line that names what is wrong."""
    for line, culprit in MISTAKES.items():
        error = mmjax(line, code=2)
        assert error.count("\n") == 1 and error.startswith("error: ") and culprit in error, f"{line}: {error}"


def train_and_resume() -> None:
    """Ctrl-C saves, the command that is printed resumes, and a finished run stays as it is."""
    arguments = ["train", "--gin_file=examples/shapes.gin", "--steps=30", "--workdir=run"]
    arguments.append("--gin.TrainConfig.log_interval=1")
    command = [sys.executable, "-m", "mmjax", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=QUICK_ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        shown = []
        for line in process.stdout:
            shown.append(line)
            if line.startswith("step 3/"):
                process.send_signal(signal.SIGINT)
    output = "".join(shown)
    assert process.returncode == 0 and "Traceback" not in output, output
    (resume,) = re.findall(r"python -m mmjax\.train .*--resume", output)
    saved = json.loads(pathlib.Path("run/summary.json").read_text())
    assert saved["stopped_by"] == "Ctrl-C" and 3 <= saved["steps"] < 30
    run(shlex.split(resume))
    finished = contents(pathlib.Path("run"))
    assert json.loads(finished["summary.json"])["steps"] == 30
    lines = [json.loads(line) for line in finished["metrics.jsonl"].splitlines()]
    assert [line["step"] for line in lines if "accuracy" not in line] == list(range(1, 31))
    assert "finished" in run(shlex.split(resume))
    assert contents(pathlib.Path("run")) == finished


def shown_commands(documents: Iterable[pathlib.Path]) -> str:
    """The commands in the blocks of documents that are run."""
    blocks = (block for document in documents for block in read_blocks(document, HOME))
    return "".join(block.text for block in blocks if block.is_run and block.language == "bash")


def programs(shown: str) -> list[tuple[str, list[str]]]:
    """The folder and the command of every notebook, and of every example: a program, or the command that it is for.

    Args:
        shown: Commands that documents run; the programs of examples among them are left out, as are `TESTED` ones.
    """
    notebooks = [
        ("notebooks", [sys.executable, "-m", "jupyter", "execute", path.name])
        for path in sorted(pathlib.Path("notebooks").glob("*.ipynb"))
    ]
    commands = []
    for path in sorted(pathlib.Path("examples").glob("*.py")):
        text = path.read_text()
        if path.name in TESTED:
            continue
        if '__name__ == "__main__"' in text and f"python examples/{path.name}\n" not in shown:
            commands.append([sys.executable, path.name])
        if "mmjax.train --gin_file" in text and "plan.json" not in text:
            commands.append(mmjax_command(f"train --gin_file={path.stem}.gin --steps=3 --workdir=runs/{path.stem}"))
    # Those that only plan, and so compile nothing, come first.
    commands.sort(key=lambda command: "train" in command)
    return [("examples", command) for command in commands] + notebooks


def run_program(folder: str, command: list[str]) -> None:
    """Runs a program, and prints how long it took."""
    timed(shlex.join(command[1:]), lambda: run(command, folder=folder))


def timed(name: str, work: Callable[[], object]) -> None:
    """Does work, and prints the seconds that it took."""
    begin = time.monotonic()
    work()
    print(f"  {time.monotonic() - begin:4.0f} s  {name}", flush=True)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """The contents of all files of a folder by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def mmjax(line: str, code: int = 0) -> str:
    """Runs `mmjax LINE`, and returns what it said: stdout, or stderr where it must fail."""
    return run(mmjax_command(line), code)


def mmjax_command(line: str) -> list[str]:
    """The command of `mmjax LINE`."""
    return [sys.executable, "-m", "mmjax", *shlex.split(line)]


def run(command: list[str], code: int = 0, folder: str = ".", environment: dict[str, str] = QUICK_ENVIRONMENT) -> str:
    """Runs a command; fails if it ends with another code or shows a traceback."""
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == code and "Traceback" not in done.stdout + done.stderr, (
        f"{shlex.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stderr if code else done.stdout


if __name__ == "__main__":
    main()
