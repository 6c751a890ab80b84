"""Import guard: refuses to run where another package has the name of one of ours.

`python -m` and `python script.py` look for packages in the current folder first, and ours have common names: a folder
`data/` there would be imported in place of ours. This module imports nothing of ours, so that it works then too;
`mmjax.cli` calls it before it imports anything else.
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
    return pathlib.Path(spec.origin).resolve() if spec.origin else None


def find_shadowed_package() -> str | None:
    """The message for the user if a package of ours is missing or shadowed, else None."""
    home = pathlib.Path(__file__).resolve().parents[2]
    for package in PACKAGES:
        location = _location(package)
        if location is None:
            return f"the package '{package}' is missing next to {home / 'mmjax'}: install mmjax again"
        if location != home / package:
            return (
                f"{location} shadows mmjax's own package '{package}' ({home / package}): "
                "run from another folder, or rename yours"
            )
    return None


def refuse_shadowed_packages() -> None:
    """Exits with code 2 if a package of ours is missing or shadowed; the message names the path in the way."""
    shadow = find_shadowed_package()
    if shadow is not None:
        print(f"error: {shadow}", file=sys.stderr)
        raise SystemExit(2)
