"""The import levels of docs/reference/source_map.md, read from the imports of every file.

A module imports only from levels below its own, and no folder imports another that imports it, directly or through
other folders. Neither does a file.
"""

import ast
import functools
import graphlib
import pathlib
from collections.abc import Mapping, Set

import pytest

HOME = pathlib.Path(__file__).resolve().parents[1]
LONGEST_FILE = 400

# By prefix of a module's name: what of ours the module may import. The longest prefix that fits counts.
ENTRY_POINTS = "mmjax.*"  # files directly under mmjax/, and the folders not listed below
EVERYTHING = {"configs", "sharding", "pallas_kernels", "data", "mmjax"}
ALLOWED = {
    "configs": {"configs"},
    "pallas_kernels": {"pallas_kernels"},
    "sharding": {"configs", "sharding"},
    "sharding.runtime": {"configs", "sharding", "pallas_kernels"},
    "data": {"configs", "sharding", "data"},
    "mmjax.models": {"configs", "sharding.axes", "sharding.expert_transfer", "sharding.trees"}  # no plans
    | {"pallas_kernels", "mmjax.models"},
    "mmjax.weights": {"configs", "sharding.trees", "mmjax.models", "mmjax.weights"},
    "mmjax.training": {"configs", "sharding", "pallas_kernels", "data"}
    | {"mmjax.models", "mmjax.weights", "mmjax.training"},
    "mmjax.generation": {"configs", "sharding", "pallas_kernels", "data"}
    | {"mmjax.models", "mmjax.training", "mmjax.generation"},
    ENTRY_POINTS: EVERYTHING,
}
OURS = {"configs", "pallas_kernels", "sharding", "data", "mmjax", "benchmarks", "tests"}
WITHOUT_JAX = {"configs", "sharding", "data", "mmjax.weights.published"}
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}

# Imported by every command before jax may start.
BEFORE_JAX = {
    "mmjax",
    "mmjax.cli",
    "mmjax.cli.command",
    "mmjax.cli.flags",
    "mmjax.cli.gin_config",
    "mmjax.cli.gin_errors",
    "mmjax.cli.gin_types",
    "mmjax.cli.import_guard",
    "mmjax.cli.paths",
    "mmjax.cli.training",
    "mmjax.cli.values",
    "mmjax.distributed",
    "mmjax.distributed.devices",
    "mmjax.distributed.environments",
    "mmjax.distributed.joining",
    "mmjax.distributed.placement",
    "mmjax.distributed.variables",
}


def modules() -> dict[str, pathlib.Path]:
    """The path of every module of ours that is installed, by name."""
    paths = [
        path for package in ("configs", "pallas_kernels", "sharding", "data", "mmjax") for path in sources(package)
    ]
    return {module_name(path): path for path in paths}


def sources(folder: str) -> list[pathlib.Path]:
    return sorted((HOME / folder).rglob("*.py"))


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(HOME).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def level(module: str) -> str:
    """The key of ALLOWED that holds for a module."""
    fitting = [key for key in ALLOWED if within(module, {key})]
    return max(fitting, key=len, default=ENTRY_POINTS)


def within(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


@functools.cache
def imports(source: str, module: str = "", top_level_only: bool = False) -> frozenset[str]:
    """The full names that a file imports; `from a import b` is a.b, which may be a module or a name in one."""
    tree = ast.parse(source)
    names = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(names)


def forbidden(module: str, source: str) -> set[str]:
    """The imports of a module from levels that are not below its own."""
    imported = imports(source, module)
    allowed = ALLOWED[level(module)]
    wrong = {name for name in imported if within(name, OURS) and not within(name, allowed)}
    if within(module, WITHOUT_JAX) and not within(module, {"sharding.runtime"}):
        wrong |= {name for name in imported if within(name, JAX)}
    if level(module) != ENTRY_POINTS:
        wrong |= {name for name in imported if within(name, {"gin"})}
    if module in BEFORE_JAX:
        wrong |= {name for name in imports(source, module, top_level_only=True) if within(name, JAX)}
    return wrong


def test_every_module_imports_only_from_levels_below():
    paths = modules()
    assert {"configs", "mmjax", "mmjax.cli"} <= set(paths)
    wrong = {name: forbidden(name, path.read_text()) for name, path in paths.items()}
    assert {name: culprits for name, culprits in wrong.items() if culprits} == {}


@pytest.mark.parametrize(
    ("module", "source", "culprits"),
    [
        ("configs.clusters", "import jax.numpy as jnp", {"jax.numpy"}),
        ("configs.clusters", "from sharding import plan", {"sharding.plan"}),
        ("sharding.plans.plan", "def f():\n    import jax", {"jax"}),
        ("sharding.plans.plan", "from sharding.runtime import mesh", set()),
        ("sharding.plans.plan", "from mmjax.models.modalities import vision", {"mmjax.models.modalities.vision"}),
        ("sharding.runtime.meshes", "import jax\nfrom .. import plan", set()),
        (
            "sharding.runtime.meshes",
            "from data.packing.global_batch import GlobalBatch",
            {"data.packing.global_batch.GlobalBatch"},
        ),
        ("data.packing.global_batch", "from flax import nnx", {"flax.nnx"}),
        ("data.packing.global_batch", "import gin", {"gin"}),
        ("data.packing.global_batch", "from mmjax import cli", {"mmjax.cli"}),
        ("mmjax.serve_data", "from mmjax import cli", set()),
        ("mmjax.models.modalities.vision", "from sharding.axes import Axes\nimport jax", set()),
        (
            "mmjax.models.modalities.vision",
            "from sharding import plan, schedule",
            {"sharding.plan", "sharding.schedule"},
        ),
        ("mmjax.models.modalities.vision", "from mmjax.training import losses", {"mmjax.training.losses"}),
        ("mmjax.weights.published.decoders.dense.llama", "import jax", {"jax"}),
        ("mmjax.weights.folder", "from mmjax.weights.published import rules", set()),
        ("mmjax.weights.folder", "from mmjax.training import config", {"mmjax.training.config"}),
        ("mmjax.training.trainer", "from mmjax import cli", {"mmjax.cli"}),
        ("mmjax.training.trainer", "from tests import conftest", {"tests.conftest"}),
        ("mmjax.train", "import gin\nfrom mmjax.training import trainer", set()),
        ("mmjax.cli", "import jax", {"jax"}),
        ("mmjax.cli", "def f():\n    import jax", set()),
    ],
)
def test_the_check_finds_what_is_wrong(module, source, culprits):
    assert forbidden(module, source) == culprits


def folder(module: str, packages: Set[str], depth: int) -> str:
    """The package that contains a module, cut to `depth` parts of its name; a package contains itself."""
    parts = module.split(".") if module in packages else module.split(".")[:-1]
    return ".".join(parts[:depth])


def folder_imports(modules: Mapping[str, str], depth: int) -> dict[str, set[str]]:
    """By folder, the other folders that it imports from.

    Args:
        modules: Source of every module by name.
        depth: Folders deeper than this count as the folder at this depth.
    """
    graph: dict[str, set[str]] = {}
    packages = {module.rpartition(".")[0] for module in modules}
    for module, source in modules.items():
        importer = folder(module, packages, depth)
        graph.setdefault(importer, set())
        for name in imports(source, module):
            imported = name if name in modules else name.rpartition(".")[0]  # a module, or a name in one
            if imported in modules and folder(imported, packages, depth) != importer:
                graph[importer].add(folder(imported, packages, depth))
    return graph


def import_loop(modules: Mapping[str, str], depth: int) -> list[str]:
    """Folders each of which imports the one before it, the first and the last the same; empty without a loop."""
    try:
        graphlib.TopologicalSorter(folder_imports(modules, depth)).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def file_imports(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """By module, the others that it imports, or whose names it imports: anywhere in it, for the type checker too."""
    graph = {}
    for module, source in modules.items():
        names = imports(source, module)
        graph[module] = {name if name in modules else name.rpartition(".")[0] for name in names} & (
            modules.keys() - {module}
        )
    return graph


def file_loop(modules: Mapping[str, str]) -> list[str]:
    """Files each of which imports the one before it, the first and the last the same; empty without a loop."""
    try:
        graphlib.TopologicalSorter(file_imports(modules)).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_file_imports_another_that_imports_it():
    paths = modules() | {module_name(path): path for path in sources("benchmarks")}
    assert file_loop({name: path.read_text() for name, path in paths.items()}) == []


@pytest.mark.parametrize(
    ("sources", "loop"),
    [
        ({"a.m": "from a.n import f", "a.n": "import os"}, []),
        ({"a.m": "from a import n", "a.n": "from a.m import f"}, ["a.m", "a.n", "a.m"]),
        ({"a.m": "from .n import f", "a.n": "def g():\n    import a.m"}, ["a.m", "a.n", "a.m"]),
        (
            {"a.m": "import a.n", "a.n": "import a.o", "a.o": "if TYPE_CHECKING:\n    from a.m import F"},
            ["a.m", "a.o", "a.n", "a.m"],
        ),
    ],
    ids=["none", "direct", "relative, and in a function", "through a third, for the type checker"],
)
def test_the_check_finds_loops_between_files(sources, loop):
    actual = file_loop({"a": ""} | sources)
    assert sorted(set(actual)) == sorted(set(loop)) and bool(actual) == bool(loop)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_no_folder_imports_another_that_imports_it(depth):
    paths = modules() | {module_name(path): path for path in sources("benchmarks")}
    assert import_loop({name: path.read_text() for name, path in paths.items()}, depth) == []


@pytest.mark.parametrize(
    ("sources", "depth", "loop"),
    [
        ({"a.x.m": "from a.y import n", "a.y.n": "import os"}, 2, []),
        ({"a.x.m": "from a.y import n", "a.y.n": "from a.x.m import f"}, 2, ["a.x", "a.y", "a.x"]),
        ({"a.x.m": "from a.y import n", "a.y.n": "from a.x.m import f"}, 1, []),  # all within a
        ({"a.x.m": "import b.m", "b.m": "from a.y import n", "a.y.n": ""}, 2, []),
        ({"a.x.m": "import b.m", "b.m": "from a.y import n", "a.y.n": ""}, 1, ["a", "b", "a"]),
        ({"a.m": "import b.m", "b.m": "import c.m", "c.m": "def f():\n    from a.m import g"}, 1, ["a", "c", "b", "a"]),
    ],
    ids=["none", "direct", "within one folder", "none below", "above", "through a third, in a function"],
)
def test_the_check_finds_loops_between_folders(sources, depth, loop):
    packages = {name.rpartition(".")[0] for name in sources} | {name.partition(".")[0] for name in sources}
    actual = import_loop(dict.fromkeys(packages, "") | sources, depth)
    assert sorted(set(actual)) == sorted(set(loop)) and bool(actual) == bool(loop)


def test_every_folder_of_tests_is_a_package():
    folders = {path.parent for path in sources("tests")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_no_file_is_long():
    folders = ("configs", "pallas_kernels", "sharding", "data", "mmjax", "benchmarks", "tests")
    lengths = {str(path): len(path.read_text().splitlines()) for folder in folders for path in sources(folder)}
    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}
