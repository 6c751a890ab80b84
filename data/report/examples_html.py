"""Typical and extreme samples as HTML: their media, and every token, marked if special, a medium or in the loss."""

import base64
import itertools
from collections.abc import Iterable, Iterator, Sequence

from data.report.charts import colour_of
from data.report.description import DatasetDescription
from data.report.examples import MAX_KINDS, MediaExamples, SampleExample
from data.report.plain_words import counted
from data.report.shown_tokens import TokenRun
from sharding.html.elements import Html, element
from sharding.html.numbers import count, percent

STYLE = """
.sample { break-inside: avoid; }
.sample img { max-width: 100%; image-rendering: auto; border-radius: 3px; vertical-align: top; margin: 0 6px 6px 0; }
.tokens { font-size: 13px; line-height: 1.9; overflow-wrap: anywhere; white-space: pre-wrap; margin: 4px 0; }
.tokens > * > *, .tokens > :not(mark) { border-left: 1px solid var(--line); }
.tokens mark { background: var(--loss); color: inherit; text-decoration: underline; text-underline-offset: 3px;
               padding: 2px 0; border-radius: 2px; }
.tokens code { background: var(--panel); border: 1px solid var(--faint); border-radius: 4px; padding: 0 4px;
               margin: 0 1px; font-size: 12px; }
.tokens .medium { border: 1px solid; border-left: 8px solid; border-radius: 4px; padding: 0 6px; margin: 0 2px;
                  white-space: nowrap; }
.tokens .out { color: var(--faint); border: 0; }
.ids { max-height: 150px; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; }
:root { --loss: #ffe3a6; }
@media (prefers-color-scheme: dark) { :root { --loss: #5d4613; } }
@media print { :root { --loss: #ffe3a6; } }
"""
"""CSS of a page; notebooks do without it, by elements that browsers style themselves."""


def examples_section(description: DatasetDescription) -> Html | str:
    """Typical and extreme samples, each token once; empty where none was decoded."""
    if not description.examples:
        return ""
    kinds = sum(kind.drawn > 0 for kind in description.kinds)
    which = f", of the {MAX_KINDS} largest of {kinds} kinds" if kinds > MAX_KINDS else ""
    cards = element(
        "div",
        map(_example, description.examples),
        class_="grid",
        style="display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:14px",
    )
    note = (
        f"Typical and extreme samples{which}: all tokens that the backbone reads, in order. The pointer shows the "
        "place and id of each."
    )
    return element("div", element("p", note, class_="note"), _legend(), cards)


def _legend() -> Html:
    return element(
        "p",
        element("mark", element("span", "underlined")),
        " is in the loss: the model learns to predict it. ",
        element("code", "<name>"),
        " is a special token, which no text can spell. ",
        _medium("4 × encoder", "encoder"),
        " are tokens in whose place the outputs of that encoder stand.",
        class_="tokens legend",
    )


def _example(example: SampleExample) -> Html:
    sizes = ", ".join(counted(size, name) for name, size in example.sizes.items())
    tokens = example.sizes.get("tokens", 0)
    taught = f"; {count(example.targets)} tokens ({percent(example.targets / tokens)}) in the loss" if tokens else ""
    return element(
        "div",
        element("h3", f"{example.kind}: {example.role}"),
        element("p", f"sample {example.sample_id}: {sizes or example.problem}{taught}", class_="note"),
        map(_media, example.media),
        _tokens(example.tokens),
        class_="panel sample",
    )


def _tokens(runs: Sequence[TokenRun]) -> Iterator[Html]:
    """A paragraph for the trunk and for every branch, then the ids."""
    for branch, branch_runs in itertools.groupby(runs, key=lambda run: run.branch):
        number = [element("span", f"branch {branch} ", class_="out")] if branch else []
        yield element("p", number, _marked(branch_runs), class_="tokens")
    if runs:
        ids = " ".join(_ids(run) for run in runs)
        yield element("details", element("summary", "Token ids"), element("div", ids, class_="ids"))


def _marked(runs: Iterable[TokenRun]) -> Iterator[Html]:
    for is_target, alike in itertools.groupby(runs, key=lambda run: run.is_target and run.kind != "left out"):
        shown = [_run(run) for run in alike]
        yield from [element("mark", shown)] if is_target else shown


def _run(run: TokenRun) -> Html:
    last = run.position + len(run.ids) - 1
    place = f"token {run.position}" + (f" to {last}" if last > run.position else "")
    learned = ", in the loss" if run.is_target else ", not in the loss"
    if run.kind == "left out":
        some = ", some of them in the loss" if run.is_target else ""
        return element("span", f" … {count(len(run.ids))} tokens more{some} … ", class_="out")
    if run.kind == "medium":
        return _medium(f"{len(run.ids)} × {run.text}", run.text, f"{place}, id {run.ids[0]}{learned}")
    hint = f"{place}, id {' '.join(map(str, run.ids))}{learned}"
    return element("code" if run.kind == "special" else "span", run.text.replace("\n", "↵\n"), title=hint)


def _medium(words: str, module: str, hint: str | None = None) -> Html:
    colour = colour_of(module)
    return element("span", words, class_="medium", style=f"border-color:{colour};font-weight:600", title=hint)


def _ids(run: TokenRun) -> str:
    if run.kind == "left out":
        return "…"
    if run.kind == "medium" and len(set(run.ids)) == 1 and len(run.ids) > 1:
        return f"{run.ids[0]}×{len(run.ids)}"
    return " ".join(map(str, run.ids))


def _media(media: MediaExamples) -> Html:
    pictures = (
        element("img", src=f"data:{_media_type(file)};base64,{base64.b64encode(file).decode()}", alt=media.title)
        for file in media.files
    )
    more = f" and {count(media.left_out)} more" if media.left_out else ""
    return element("div", pictures, element("p", f"{media.title}{more}", class_="note"))


def _media_type(file: bytes) -> str:
    return "image/png" if file.startswith(b"\x89PNG") else "image/jpeg"
