"""The files of examples/, as modules, and commands that are run beside them."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types
from typing import Any

HOME = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = HOME / "examples"


def load_example(name: str) -> types.ModuleType:
    """Runs the file of an example, and what it registers, as an import of it does."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_command(*arguments: str) -> Any:
    """Runs a command of mmjax in the folder of the examples, and returns the JSON document that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "--json"],
        cwd=EXAMPLES,
        env=os.environ | {"PYTHONPATH": str(HOME)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
