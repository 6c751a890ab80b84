"""Refuse to run where another package has the name of one of ours.

`python -m` and `python script.py` look for packages in the user's folder first, and ours have common names: a folder
`data/` there would be imported in place of ours. This module imports nothing of ours, so that it still works then.
"""

import importlib.util
import pathlib
import sys

PACKAGES = ("configs", "data", "pallas_kernels", "sharding")


def _location(package: str) -> pathlib.Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return pathlib.Path(next(iter(spec.submodule_search_locations))).resolve()
    return pathlib.Path(spec.origin).resolve()


def find_shadowed_package() -> str | None:
    """Returns what to tell the user when a package of ours is missing or shadowed, else nothing."""
    home = pathlib.Path(__file__).resolve().parents[2]
    for package in PACKAGES:
        found = _location(package)
        if found is None:
            return f"the package '{package}' is missing beside {home / 'mmjax'}: install mmjax again"
        if found != home / package:
            return (
                f"{found} shadows mmjax's own package '{package}' ({home / package}): "
                "run from another folder, or rename yours"
            )
    return None


def refuse_shadowed_packages() -> None:
    """Exits with 2 when a package of ours is missing or shadowed, naming the path that is in the way."""
    shadow = find_shadowed_package()
    if shadow is not None:
        print(f"error: {shadow}", file=sys.stderr)
        raise SystemExit(2)
