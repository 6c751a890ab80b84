"""Checks of the records in a run's folder before the page reads them: keys and types, else the file is refused."""

import datetime
import math
from collections.abc import Mapping
from typing import Any

from configs.common.errors import UserError
from configs.common.shown_text import one_line

LARGEST = 1e100
"""Largest size of a number that a chart or table shows; a larger one is as little a measurement as NaN."""

_WORDS = {str: "a text", int: "a whole number, 0 or more", float: "a number", bool: "true or false"}

START = {"time": str, "step": int, "steps": int, "processes": int, "remark": str, "devices": str}
ANSWER = {"prompt": str, "expected": str, "answer": str, "ended": bool}
IMAGE = {"prompt": str, "expected": str, "image": str}
REFUSAL = {"source": str, "key": str, "reason": str}


def is_number(value: Any) -> bool:
    """Whether a value is a number that can be shown."""
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= LARGEST


def require_object(document: Any, where: str) -> dict[str, Any]:
    """The document; raises UserError if it is no JSON object."""
    if not isinstance(document, dict):
        raise UserError(f"{where} is no JSON object")
    return document


def require_fields(record: Mapping[str, Any], where: str, types: Mapping[str, type]) -> None:
    """Checks the types of fields.

    Args:
        record: The record.
        where: Names its file and line.
        types: Type of each required field, by name.

    Raises:
        UserError: A field is missing or has another type; of whole numbers, or is below 0.
    """
    for name, expected in types.items():
        value = record.get(name)
        fits = is_number(value) if expected is float else type(value) is expected
        if not fits or (type(value) is int and expected is int and value < 0):
            said = one_line(repr(value)) if name in record else "missing"
            raise UserError(f"{where}: {name} is {said}; it must be {_WORDS[expected]}")


def check_start(record: Mapping[str, Any], where: str) -> None:
    """Checks a line of `starts.jsonl`; raises UserError."""
    require_fields(record, where, START)
    _require_texts(record.get("versions"), where, "versions", dict)
    _require_texts(record.get("passed_over", []), where, "passed_over", list)
    try:
        datetime.datetime.fromisoformat(record["time"]).timestamp()
    except (ValueError, OverflowError) as error:
        raise UserError(f"{where}: time is {one_line(repr(record['time']))}, which is no date and time") from error


def check_answer(record: Mapping[str, Any], where: str) -> None:
    """Checks a line of `samples/`; raises UserError."""
    if record.get("kind") not in ("answer", "image"):
        raise UserError(f"{where}: kind is {one_line(repr(record.get('kind')))}; it must be 'answer' or 'image'")
    require_fields(record, where, ANSWER if record["kind"] == "answer" else IMAGE)
    _require_texts(record.get("images"), where, "images", list)


def check_refusal(record: Mapping[str, Any], where: str) -> None:
    """Checks a line of a list of refused samples; raises UserError."""
    require_fields(record, where, REFUSAL)


def check_summary(record: Mapping[str, Any], where: str) -> None:
    """Checks `summary.json`; raises UserError."""
    optional = {"stopped_by": str, "remark": str, "devices": str, "wall_seconds": float}
    require_fields(record, where, {"steps": int} | {name: optional[name] for name in optional if name in record})
    samples = require_object(
        require_object(record.get("data", {}), f"{where}: data").get("samples", {}), f"{where}: data.samples"
    )
    require_fields(samples, f"{where}: data.samples", dict.fromkeys(samples, int))


def _require_texts(values: Any, where: str, name: str, container: type) -> None:
    texts = values.values() if isinstance(values, dict) else values
    if not isinstance(values, container) or not all(type(text) is str for text in texts):
        kind = "an object" if container is dict else "a list"
        raise UserError(f"{where}: {name} is {one_line(repr(values))}; it must be {kind} of texts")
