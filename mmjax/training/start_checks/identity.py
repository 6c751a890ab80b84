"""The identity of a run, which must be alike in all processes: code, versions, configuration, plan, as short texts.

`python -m mmjax.train` collects them; `checks.py` exchanges and compares them.
"""

import collections
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import sys
import sysconfig
from collections.abc import Sequence

PACKAGES = ("configs", "data", "mmjax", "pallas_kernels", "sharding")
COMPARED_VERSIONS = ("jax", "jaxlib", "numpy", "orbax-checkpoint")
INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders of installed packages: of an environment, of the system and of the user."""

MOST_OWN_PACKAGES = 100
"""Packages of the user that are compared one by one: a report has a bound on its length."""

SOURCE_SUFFIXES = {".py", ".gin", ".json"}


def run_identity(configuration: str, plan: str) -> dict[str, str]:
    """Collects the identity of this process's run.

    Args:
        configuration: The configuration as text.
        plan: The plan as text.
    """
    versions = {f"version of {name}": importlib.metadata.version(name) for name in COMPARED_VERSIONS}
    return {
        "version of Python": platform.python_version(),
        **versions,
        "source of mmjax": source_digest(),
        **_own_modules(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "configuration": text_digest(configuration),
        "plan": text_digest(plan),
    }


def text_digest(text: str) -> str:
    """Returns a short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def source_digest(packages: Sequence[str] = PACKAGES) -> str:
    """Returns the digest of all source files of packages and their paths within the packages."""
    digest = hashlib.sha256()
    for package in packages:
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            for path in sorted(pathlib.Path(folder).rglob("*")):
                if path.suffix in SOURCE_SUFFIXES:
                    digest.update(f"{package}/{path.relative_to(folder)}".encode())
                    digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _own_modules() -> dict[str, str]:
    """Digests of the user's own packages, whose modules are neither mmjax's, nor Python's, nor installed."""
    packages = collections.defaultdict[str, dict[str, str]](dict)
    for name, module in sorted(sys.modules.items()):
        file, package = getattr(module, "__file__", None), name.split(".")[0]
        if file and package not in {*PACKAGES, "__main__"} and _is_own_source(pathlib.Path(file)):
            packages[package][name] = hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
    if len(packages) > MOST_OWN_PACKAGES:
        return {"source of packages that are not installed": text_digest(str(dict(packages)))}
    return {f"source of {package}": text_digest(str(modules)) for package, modules in packages.items()}


def _is_own_source(file: pathlib.Path) -> bool:
    """Whether a file is Python source that no package manager has installed, for this user or for all."""
    if file.suffix != ".py" or not INSTALLED.isdisjoint(file.parts):
        return False
    return not any(map(file.is_relative_to, _standard_folders())) and file.is_file()


@functools.cache
def _standard_folders() -> tuple[str, ...]:
    """Folders of Python's own modules; `sysconfig` takes long to name them."""
    return tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
