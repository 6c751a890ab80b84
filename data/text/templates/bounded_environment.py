"""Jinja's sandbox with limits: every loop, macro, operator, filter and method is counted before it runs.

Python runs a single operation to its end, so its cost must be known beforehand: it is computed here for operations that
make long texts, or long lists of short ones, and operations whose cost cannot be foreseen are not offered.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox

from data.text.templates.render_limits import LimitExceededError, meter, require_small

_MAX_ARGUMENT = 1000  # of a whole number given to a filter or a method, such as a width
_MAX_EXPONENT = 64
_STEPS_OF_CALL = 10  # in the time of steps
_WITHHELD_FILTERS = ("center", "format", "pprint", "random", "striptags", "sum", "urlize", "wordwrap", "xmlattr")
_WITHHELD_GLOBALS = ("lipsum", "cycler", "joiner")
_WITHHELD_METHODS = frozenset(("center", "encode", "expandtabs", "ljust", "rjust", "translate", "zfill", "maketrans"))
_WIDTH = re.compile(r"[0-9]{4}|\*|\{[^{}]*\{")  # in a format, of four digits or given as an argument


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox whose templates end, in time and memory that the conversation bounds (`render_limits.py`)."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self, **options: Any) -> None:
        """Creates it with Jinja's options."""
        super().__init__(finalize=_printable, **options)
        for name in _WITHHELD_FILTERS:
            del self.filters[name]
        for name in _WITHHELD_GLOBALS:
            del self.globals[name]
        self.filters["tojson"] = _to_json
        self.filters = {name: _guarded(name, function) for name, function in self.filters.items()}
        self.filters |= {"_counted": _counted, "_concatenated": _concatenated, "_weighed": _weighed}
        self.macro_steps = 1

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        self.macro_steps = max((_size(macro) for macro in tree.find_all(jinja2.nodes.Macro)), default=1)
        return _with_counts(tree)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The text that a template, a macro or a block has written."""
        made, whole = meter(), []
        for piece in pieces:
            made.make(len(piece))
            whole.append(piece)
        return "".join(whole)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """An operator of two values, whose result is counted before it is made."""
        match left, right:
            case (str() | list() | tuple(), int()) if operator == "*":
                meter().make(meter().weigh(left) * max(right, 0))
                meter().step(len(left) * max(right, 0))
            case (int(), str() | list() | tuple()) if operator == "*":
                return self.call_binop(context, operator, right, left)
            case (str(), _) if operator == "%":
                _count_format(left, right)
            case (str(), _) if operator == "+":
                meter().make(len(left) + meter().weigh(right))
            case (list() | tuple(), list() | tuple()) if operator == "+":
                meter().step(len(left) + len(right))
            case (int() | float(), int() | float()):
                _check_numbers(operator, left, right)
            case _:
                pass
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`format` of a text, counted before it is made."""
        wrapper = super().wrap_str_format(value)
        if wrapper is None:
            return None

        def counted(*args: Any, **named: Any) -> str:
            _count_format(value.__self__, (*args, named))
            return wrapper(*args, **named)

        return counted

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902, N805
        """A call within a template, as of a macro, a method or `range`."""
        is_macro = isinstance(__obj, jinja2.runtime.Macro | jinja2.runtime.LoopContext)
        meter().step(_STEPS_OF_CALL + (__self.macro_steps if is_macro else 0))
        if isinstance(__obj, jinja2.runtime.LoopContext) and args:
            args = (_counted(args[0], __self.macro_steps), *args[1:])
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str | bytes | int | float | list | tuple | dict):
            _check_arguments((*args, *kwargs.values()))
        if isinstance(owner, str):
            _check_method(owner, getattr(__obj, "__name__", ""), args)
        return _measured(super().call(__context, __obj, *args, **kwargs))


def _with_counts(tree: jinja2.nodes.Template) -> jinja2.nodes.Template:
    """A template whose loops count their steps, and whose lists and joined texts are weighed."""

    def wrap(node: jinja2.nodes.Node, name: str, *arguments: jinja2.nodes.Node) -> jinja2.nodes.Node:
        return jinja2.nodes.Filter(node, name, list(arguments), [], None, None).set_lineno(node.lineno)

    def visit(node: jinja2.nodes.Node) -> None:
        for child in node.iter_child_nodes():
            visit(child)
        if isinstance(node, jinja2.nodes.For):
            node.iter = wrap(node.iter, "_counted", jinja2.nodes.Const(_size(node)).set_lineno(node.lineno))
        for field, value in node.iter_fields():
            if isinstance(value, list):
                setattr(node, field, [replaced(item) for item in value])
            elif not isinstance(node, jinja2.nodes.Filter) or field == "node":
                setattr(node, field, replaced(value))

    def replaced(value: Any) -> Any:
        if isinstance(value, jinja2.nodes.Concat):
            return wrap(jinja2.nodes.List(value.nodes).set_lineno(value.lineno), "_concatenated")
        is_made = isinstance(value, jinja2.nodes.List | jinja2.nodes.Dict) or (
            isinstance(value, jinja2.nodes.Tuple) and value.ctx == "load"
        )
        return wrap(value, "_weighed") if is_made else value

    visit(tree)
    assert tree.environment is not None, "the parser sets it"
    tree.set_environment(tree.environment)
    return tree


def _size(node: jinja2.nodes.Node) -> int:
    """Number of nodes of a template at and below a node, at least 1."""
    return 1 + sum(1 for _ in node.find_all(jinja2.nodes.Node))


def _counted(items: Any, steps: int) -> Any:
    """The items of a loop, each counted as so many steps; their length stays known where it is."""
    return meter().counted(items, steps) if isinstance(items, Iterator) else _CountedItems(items, steps)


class _CountedItems:
    """Items of known number, each counted as so many steps when it is reached."""

    def __init__(self, items: Any, steps: int) -> None:
        self._items, self._steps = items, steps

    def __iter__(self) -> Iterator[Any]:
        return meter().counted(self._items, self._steps)

    def __len__(self) -> int:
        return len(self._items)


def _concatenated(parts: list[Any]) -> str:
    meter().make(sum(map(meter().weigh, parts)))
    return "".join(map(str, parts))


def _weighed(value: Any) -> Any:
    meter().weigh(value)
    return value


def _measured(value: Any) -> Any:
    """The value, after its characters and the values within it have been counted."""
    if isinstance(value, str | list | tuple | dict):
        meter().make(meter().weigh(value) if not isinstance(value, str) else len(value))
    return value


def _printable(value: Any) -> Any:
    """The value, after the characters of its text have been counted."""
    if not isinstance(value, str):
        meter().make(meter().weigh(value))
    return value


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as transformers writes it for templates."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments are counted before it runs, and its result behind it."""
    skipped = 0 if getattr(function, "jinja_pass_arg", None) is None else 1  # the context or the environment

    @functools.wraps(function)
    def guarded(*args: Any, **named: Any) -> Any:
        before, given = args[:skipped], list(args[skipped:])
        if given and not isinstance(given[0], str | Mapping) and isinstance(given[0], Iterator):
            given[0] = _weighed_items(given[0])
        meter().step(
            _STEPS_OF_CALL + sum(len(value) for value in given[:1] if isinstance(value, str | list | tuple)) // 100
        )
        _check_arguments((*given[1:], *named.values()))
        match name, given:
            case "replace", [text, old, new, *_]:
                _count_replaced(f"{text}", f"{old}", f"{new}")
            case "join", [items, *_] if not isinstance(items, Iterator):
                separator = given[1] if len(given) > 1 else named.get("d", "")
                meter().make(meter().weigh(items) + len(f"{separator}") * len(items))
            case "list", [str() as text, *_]:
                meter().step(len(text))
            case "indent", [text, *_]:
                width = given[1] if len(given) > 1 else named.get("width", 4)
                lines = f"{text}".count("\n") + 1
                meter().make(lines * (len(width) if isinstance(width, str) else width))
            case "tojson", [value, *_]:
                indent = (given[1] if len(given) > 1 else named.get("indent")) or 0
                steps = meter().steps_left
                weight = meter().weigh(value)
                meter().make(6 * weight + (steps - meter().steps_left) * (1 + _width(indent)))
            case _, [value, *_] if isinstance(value, list | tuple | dict):
                meter().weigh(value)
            case _:
                pass
        return _measured(function(*before, *given, **named))

    return guarded


def _weighed_items(items: Iterator[Any]) -> Iterator[Any]:
    """The items of a generator, each counted as text when it is reached."""
    for item in items:
        meter().step()
        meter().make(meter().weigh(item))
        yield item


def _width(value: Any) -> int:
    return len(value) if isinstance(value, str) else int(value)


def _check_arguments(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and value > _MAX_ARGUMENT:
            raise LimitExceededError(
                f"{value} is more than {_MAX_ARGUMENT}, the largest argument of a filter or method"
            )


def _check_method(text: str, name: str, args: tuple[Any, ...]) -> None:
    """Counts the characters that a method of a text makes."""
    if name in _WITHHELD_METHODS:
        raise LimitExceededError(f"the method {name} of texts is not offered")
    if name == "replace" and len(args) > 1:
        _count_replaced(text, str(args[0]), str(args[1]))
    elif name == "join" and args:
        if isinstance(args[0], Iterator):
            raise LimitExceededError("the method join of texts takes a list")
        meter().make(meter().weigh(args[0]) + len(text) * len(args[0]))
    elif "split" in name:  # a list of many short texts takes more memory than they
        separator = args[0] if args and isinstance(args[0], str) and args[0] else None
        meter().step(10 * (text.count(separator) if separator else len(text) // 2))
    else:
        meter().step(1 + len(text) // 100)


def _count_replaced(text: str, old: str, new: str) -> None:
    meter().make(len(text) + text.count(old) * max(len(new) - len(old), 0))


def _count_format(form: str, values: Any) -> None:
    """Counts a format of values: each of its places may show all of them."""
    if _WIDTH.search(form):
        raise LimitExceededError("a format has a width of four digits or more, or one that is an argument")
    places = form.count("%") + form.count("{")
    meter().make(len(form) + places * (1000 + meter().weigh(values)))


def _check_numbers(operator: str, left: int | float, right: int | float) -> None:
    for number in (left, right):
        if isinstance(number, int):
            require_small(number)
    if operator == "**" and abs(right) > _MAX_EXPONENT:
        raise LimitExceededError(f"the exponent {right} is more than {_MAX_EXPONENT}")
