"""Nothing that mmjax reads from outside can be a pickle, because no module of it imports what reads one."""

import ast
import pathlib

import pytest

HOME = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ("configs", "data", "mmjax", "pallas_kernels", "sharding")
READERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "torch"}
"""Modules that run what a file says."""

ALLOW_PICKLE = {"allow_pickle", "weights_only"}


def readers_of_pickles(source: str) -> list[str]:
    """What reads a pickle in a source, by line."""
    uses = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            uses += [f"{node.lineno}: {key.arg}" for key in node.keywords if key.arg in ALLOW_PICKLE]
        uses += [f"{node.lineno}: {name}" for name in names if name.split(".")[0] in READERS]
    return uses


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_reads_pickles(package):
    paths = sorted((HOME / package).rglob("*.py"))
    assert paths
    uses_by_path = {str(path): readers_of_pickles(path.read_text()) for path in paths}
    assert {path: lines for path, lines in uses_by_path.items() if lines} == {}


def test_readers_of_pickles_are_seen():
    source = "import os, pickle.x\nfrom torch import load\nnumpy.load(path, allow_pickle=True)\n"
    assert readers_of_pickles(source) == ["1: pickle.x", "2: torch", "3: allow_pickle"]
