"""Jinja as published chat templates expect it: sandboxed, with the tag that marks the assistant's words."""

import datetime
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from data.errors import DataError
from data.extras import missing_extra
from data.text.templates.render_limits import LimitExceededError, limited

try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.parser

    from data.text.templates.bounded_environment import BoundedEnvironment
except ImportError as error:
    raise missing_extra("a tokenizer's own chat template", "chat", error) from error

SAID_BEGINS, SAID_ENDS = "\ue002", "\ue003"
"""Signs around the text within `{% generation %}`."""

_DATE = datetime.datetime(2024, 7, 26, tzinfo=datetime.UTC)  # the default of Llama's templates
_MAX_SOURCE = 1 << 18  # characters; published templates have up to about 20,000


class TemplateRefusalError(Exception):
    """A template raised an error for a conversation."""


class TemplateLimitError(TemplateRefusalError):
    """A template takes more steps or characters than a rendering may."""


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` and `{% endgeneration %}`, between which the assistant's words stand."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The nodes of the body between two signs."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        begins, ends = (
            jinja2.nodes.Output([jinja2.nodes.TemplateData(sign)]).set_lineno(line) for sign in (SAID_BEGINS, SAID_ENDS)
        )
        return [begins, *body, ends]


def render(
    source: str, variables: Mapping[str, str], messages: Sequence[Mapping[str, Any]], generation_prompt: bool
) -> str:
    """The text of a conversation.

    Every day is 26 July 2024 for templates that ask for the date, so that a sample is the same on every day.

    Args:
        source: The template.
        variables: Spellings of special tokens, by name.
        messages: The turns, each with `role` and `content`.
        generation_prompt: Whether the markup before the assistant's next answer follows.

    Raises:
        DataError: The source is no template.
        TemplateRefusalError: It raises an error for these messages.
        TemplateLimitError: It exceeds the limits of `data.text.templates.render_limits`.
    """
    template = _compiled(source)
    try:
        with limited([messages, variables]):
            return template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=generation_prompt, **variables
            )
    # A template can make any operation of Python fail.
    except LimitExceededError as error:
        raise TemplateLimitError(str(error)) from error
    except MemoryError:  # the limits keep a template far from it
        raise
    except Exception as error:
        raise TemplateRefusalError(f"{error}".splitlines()[0] if f"{error}" else type(error).__name__) from error


@functools.lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    if len(source) > _MAX_SOURCE:
        raise DataError(f"the tokenizer's chat template has {len(source)} characters, more than {_MAX_SOURCE}")
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _FixedDate(name="strftime_now")
    try:
        with limited(source):  # constants are computed here
            return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        where = f"{error.message} in line {error.lineno}"
        raise DataError(f"the tokenizer's chat template cannot be read: {where}") from error
    except Exception as error:  # of Python's compiler, where it nests too deeply
        reason = f"{type(error).__name__}, as of a template that nests too deeply"
        raise DataError(f"the tokenizer's chat template cannot be read: {reason}") from error


class _FixedDate(jinja2.Undefined):
    """`strftime_now`: one date for templates that call it; undefined for templates that test whether it is defined."""

    unsafe_callable = alters_data = False
    jinja_pass_arg = None

    def __call__(self, form: str) -> str:
        if not re.fullmatch(r"([^%]|%-?[A-Za-z%]){0,100}", form):  # a width would take any amount of memory
            raise jinja2.TemplateError(f"strftime_now of the format {form!r}")
        return _DATE.strftime(form)


def _refuse(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))
