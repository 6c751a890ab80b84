"""Plain nested dictionaries with leaves at paths such as `attention/query/kernel`."""

from collections.abc import Callable, Mapping
from typing import Any

Tree = dict[str, Any]


def get_leaf(tree: Mapping[str, Any], path: str) -> Any:
    """Returns the leaf (or subtree) at a path."""
    for key in path.split("/"):
        tree = tree[key]
    return tree


def set_leaf(tree: Mapping[str, Any], path: str, leaf: Any) -> Tree:
    """Returns a copy of the tree with one leaf added or replaced."""
    head, _, rest = path.partition("/")
    return {**tree, head: set_leaf(tree.get(head, {}), rest, leaf) if rest else leaf}


def drop_leaf(tree: Mapping[str, Any], path: str) -> Tree:
    """Returns a copy of the tree without one leaf."""
    head, _, rest = path.partition("/")
    if rest:
        return {**tree, head: drop_leaf(tree[head], rest)}
    return {key: value for key, value in tree.items() if key != head}


def keep_leaves(tree: Mapping[str, Any], wanted: Callable[[str], bool], before: str = "") -> Tree:
    """Returns a copy of the tree with the leaves whose paths are wanted, and no empty branches."""
    kept: Tree = {}
    for key, below in tree.items():
        path = f"{before}{key}"
        if isinstance(below, Mapping):
            if branch := keep_leaves(below, wanted, f"{path}/"):
                kept[key] = branch
        elif wanted(path):
            kept[key] = below
    return kept
