"""A newcomer's first session, as a script: run by `.ci/run` with the `python` of an environment that has mmjax.

    python .ci/first_session.py

It trains, presses Ctrl-C and resumes, mistypes and breaks things, looks at data, plans and pages, and runs all examples
and notebooks, in a folder of its own. It fails at the first traceback, wrong exit code or error of more than a line.
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

HOME = pathlib.Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

SCREEN = (40, 100)
"""Lines and columns of a screen that the help of a command fits."""

COMMANDS = (
    "convert",
    "describe_data",
    "generate",
    "launch",
    "plan",
    "profile",
    "report",
    "serve_data",
    "simulate",
    "synthesize_speech",
    "train",
    "verify",
)

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


def main() -> None:
    """Runs the session, each part in the same folder."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.chdir(folder)
        (folder / "picture.png").write_bytes(bytes(range(256)) * 4)
        for part in PARTS:
            part_begin = time.monotonic()
            part()
            print(f"{part.__name__}: {time.monotonic() - part_begin:.0f} s", flush=True)
    print(f"first session: {time.monotonic() - begin:.0f} s")


def read_help() -> None:
    """The help of every command fits a screen."""
    lines, columns = SCREEN
    assert set(COMMANDS) <= set(mmjax("--help").split())
    for command in COMMANDS:
        text = mmjax(f"{command} --help").splitlines()
        assert len(text) <= lines and max(map(len, text)) <= columns, f"{command}: {len(text)} lines"


def make_mistakes() -> None:
    """Every mistake is answered in one line that names what is wrong."""
    for line, culprit in MISTAKES.items():
        error = mmjax(line, code=2)
        assert error.count("\n") == 1 and error.startswith("error: ") and culprit in error, f"{line}: {error}"


def train_and_resume() -> None:
    """Ctrl-C saves, the command that is printed resumes, and a finished run stays as it is."""
    arguments = ["train", "--gin_file=tiny.gin", "--steps=30", "--workdir=run", "--gin.TrainConfig.log_interval=1"]
    command = [sys.executable, "-m", "mmjax", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT
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


def look() -> None:
    """Plans, pages and verification."""
    mmjax("plan --gin_file=models/mllm_9b.gin --devices=32 --policy=disaggregated --output=plan.json")
    mmjax("simulate --gin_file=models/mllm_9b.gin --plan=plan.json --page=timeline.html")
    mmjax("describe_data --gin_file=tiny.gin --samples=256 --page=data.html")
    mmjax("report --workdir=run")
    for page in ("timeline.html", "data.html", "run/report.html"):
        assert "</html>" in pathlib.Path(page).read_text()


def ask() -> None:
    """The trained model answers and draws."""
    mmjax("generate --workdir=run --prompt='a blue circle' --output=circle.png --sampling_steps=2")
    assert mmjax("generate --workdir=run --image=circle.png --prompt='what color is the shape?' --max_tokens=2")


def run_programs() -> None:
    """The README's program, every notebook, and every example, as a program or by the command that it is for.

    Two at a time: most of each is planning, tracing and compiling, which one core does.
    """
    (program,) = re.findall(r"```python\n(.*?)```", (HOME / "README.md").read_text(), re.DOTALL)
    pathlib.Path("readme.py").write_text(program)
    pathlib.Path("circle.png").unlink()  # that `ask` drew
    programs = [(".", [sys.executable, "readme.py"])]
    for folder in ("notebooks", "examples"):
        shutil.copytree(HOME / folder, folder)
    for notebook in pathlib.Path("notebooks").glob("*.ipynb"):
        programs.append(("notebooks", [sys.executable, "-m", "jupyter", "execute", notebook.name]))
    programs += [("examples", command) for command in example_commands()]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(run_timed, *zip(*programs, strict=True)))
    assert pathlib.Path("circle.png").stat().st_size > 0 and pathlib.Path("runs/first/metrics.jsonl").exists()


def example_commands() -> list[list[str]]:
    """What runs each example, in its folder."""
    commands = [mmjax_command("plan --gin_file=custom_policy.gin --devices=8 --policy=replicated")]
    for path in pathlib.Path("examples").glob("*.py"):
        text = path.read_text()
        if '__name__ == "__main__"' in text:
            commands.append([sys.executable, path.name])
        if "mmjax.train --gin_file" in text and "plan.json" not in text:
            commands.append(mmjax_command(f"train --gin_file={path.stem}.gin --steps=3 --workdir=runs/{path.stem}"))
    return commands


def run_timed(folder: str, command: list[str]) -> None:
    """Runs a program, and prints how long it took."""
    begin = time.monotonic()
    run(command, folder=folder)
    print(f"  {time.monotonic() - begin:4.0f} s  {shlex.join(command[1:])}", flush=True)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """The contents of all files of a folder by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def mmjax(line: str, code: int = 0) -> str:
    """Runs `mmjax LINE`, and returns what it said: stdout, or stderr where it must fail."""
    return run(mmjax_command(line), code)


def mmjax_command(line: str) -> list[str]:
    """The command of `mmjax LINE`."""
    return [sys.executable, "-m", "mmjax", *shlex.split(line)]


def run(command: list[str], code: int = 0, folder: str = ".") -> str:
    """Runs a command; fails if it ends with another code or shows a traceback."""
    done = subprocess.run(command, env=ENVIRONMENT, cwd=folder, capture_output=True, text=True)
    assert done.returncode == code and "Traceback" not in done.stdout + done.stderr, (
        f"{shlex.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stderr if code else done.stdout


PARTS = (read_help, make_mistakes, train_and_resume, look, ask, run_programs)

if __name__ == "__main__":
    main()
