"""Loads timm without torchvision, which its models import but do not need."""

import functools
import importlib.machinery
import importlib.util
import sys
import types
import warnings

PLACES = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.models",
    "torchvision.models.feature_extraction",
    "torchvision.ops",
    "torchvision.ops.misc",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.utils",
)


class _Named(type):
    """A class that has any attribute, as an enumeration of ways to resize."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Standing(types.ModuleType):
    """A module that has any class; none is of any use."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (), {})


@functools.cache
def load():
    """timm, with modules that stand for torchvision only while it is imported."""
    standing = {} if importlib.util.find_spec("torchvision") else {name: _Standing(name) for name in PLACES}
    for name, module in standing.items():
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(standing[parent], own, module)
    sys.modules.update(standing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import timm
    finally:
        for name in standing:
            del sys.modules[name]
    return timm
