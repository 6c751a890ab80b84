"""The section of a run's page with sample answers and images over time, with the images inside the page."""

import base64
from collections.abc import Iterable, Sequence
from typing import Any

from configs.common.errors import UserError
from configs.common.strict_json import read_bounded
from mmjax.reporting.run_folder import Run
from sharding.html.elements import Html, element, table

_MOST_STEPS = 8
_PNG = b"\x89PNG\r\n\x1a\n"  # how its files begin
_SIDE = 96  # pixels of an image on the page


def samples_section(run: Run) -> Html:
    """A table of answers and a table of images: a row for each prompt, a column for each evaluation."""
    if not run.answers:
        reason = run.why_no_answers or (
            "There are none: they are taken at evaluations (TrainConfig.evaluation_interval, and at the end), if "
            "TrainConfig.sample_questions or sample_images is above 0."
        )
        return element("p", reason if reason.endswith(".") else f"There are none: {reason}.")
    steps = _some(sorted({answer["step"] for answer in run.answers}))
    parts = [_answers(run, steps), _images(run, steps)]
    return element("div", (part for part in parts if part))


def _some(steps: Sequence[int]) -> list[int]:
    """Chooses at most _MOST_STEPS of the steps, the first and the last among them."""
    if len(steps) <= _MOST_STEPS:
        return list(steps)
    return [steps[round(number * (len(steps) - 1) / (_MOST_STEPS - 1))] for number in range(_MOST_STEPS)]


def _by_prompt(run: Run, kind: str) -> list[dict[int, dict[str, Any]]]:
    """Returns the answers to each prompt of a kind by step; prompts are in the same order at every step."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for answer in run.answers:
        if answer["kind"] == kind:
            by_step.setdefault(answer["step"], []).append(answer)
    most = max(map(len, by_step.values()), default=0)
    return [
        {step: answers[number] for step, answers in by_step.items() if number < len(answers)} for number in range(most)
    ]


def _answers(run: Run, steps: Sequence[int]) -> Html | None:
    rows = []
    for by_step in _by_prompt(run, "answer"):
        newest = by_step[max(by_step)]
        said = [_answer(by_step.get(step)) for step in steps]
        rows.append((_pictures(run, newest["images"]), newest["prompt"], newest["expected"], *said))
    columns = ("", "question", "in the data set", *(f"step {step}" for step in steps))
    return table(columns, rows, "Held-out questions and the most likely answers") if rows else None


def _answer(answer: dict[str, Any] | None) -> str:
    if answer is None:
        return ""
    words = answer["answer"] or "(nothing)"
    words = words if answer["ended"] else f"{words} …"
    return element("b", words) if answer["answer"] == answer["expected"] else words


def _images(run: Run, steps: Sequence[int]) -> Html | None:
    rows = []
    for by_step in _by_prompt(run, "image"):
        newest = by_step[max(by_step)]
        made = [_pictures(run, [by_step[step]["image"]] if step in by_step else []) for step in steps]
        rows.append((newest["prompt"], _pictures(run, [newest["expected"]]), *made))
    columns = ("description", "in the data set", *(f"step {step}" for step in steps))
    return table(columns, rows, "Images from held-out descriptions, with the same noise each time") if rows else None


def _pictures(run: Run, names: Iterable[str]) -> Html:
    return element("span", (_picture(run, name) for name in names))


def _picture(run: Run, name: str) -> Html | str:
    try:
        path = run.sample_file(name)
        if not path.is_file():
            return f"({name} is missing)"
        content = read_bounded(path)
    except UserError as error:
        return f"({error})"
    if not content.startswith(_PNG):
        return f"({name} is no PNG file)"
    data = base64.b64encode(content).decode()
    style = f"width:{_SIDE}px;height:auto;image-rendering:pixelated;border-radius:3px;margin:2px"
    return element("img", src=f"data:image/png;base64,{data}", alt=name, style=style)
