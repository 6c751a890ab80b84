"""Secrets in configurations: values of parameters whose names say that they are keys, tokens or passwords.

They are masked where a run's configuration is shown.
"""

import re
from collections.abc import Iterator

MASK = "'(hidden)'"
"""Text in the place of a secret value on a page."""

_SECRET_WORD = re.compile(r"\w*(key|token|secret|password|passwd|passphrase|credential)s?")
_STATEMENT = re.compile(r"(?P<name>[A-Za-z_][\w./]*)(?P<equals>\s*=\s*(?:\\\s*)?)(?P<value>.*)", re.DOTALL)
_HARMLESS = re.compile(r"None|True|False|''|\"\"|@[\w./]+(\(\))?|%[\w./]+")
_MACRO = re.compile(r"%([\w./]+)")
_ENTRY = re.compile(
    r"(?P<name>'[^'\n]*'|\"[^\"\n]*\")(?P<colon>\s*:\s*)(?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
)
_LOGIN = re.compile(r"://[^\s/@'\"]+@")


def is_secret_name(name: str) -> bool:
    """Whether the name of a parameter, such as `Tracker.api_key`, says that its value is a secret."""
    words = re.split(r"[._/\W]+", re.split(r"[./]", name)[-1].lower())
    return any(_SECRET_WORD.fullmatch(word) for word in words)


def masked_configuration(text: str) -> str:
    """A gin file in which secrets are hidden.

    Hidden are the values of parameters and of entries of dictionaries with secret names, the macros that they refer to,
    and logins in addresses. Numbers stay, such as the value of `tokens`, except for passwords.
    """
    statements = list(_statements(text))
    matches = [match for statement in statements if (match := _STATEMENT.fullmatch(statement))]
    secret = {match["name"] for match in matches if is_secret_name(match["name"])}
    secret |= {macro for match in matches if match["name"] in secret for macro in _MACRO.findall(match["value"])}
    return "".join(_masked(statement, secret) for statement in statements)


def _statements(text: str) -> Iterator[str]:
    """The statements with their line ends; lines that are indented or close a bracket belong to the one before."""
    statement = ""
    for line in text.splitlines(keepends=True):
        if statement and line[0] not in " \t)]}":
            yield statement
            statement = ""
        statement += line
    yield statement


def _masked(statement: str, secret: set[str]) -> str:
    match = _STATEMENT.fullmatch(statement)
    if match and match["name"] in secret:
        value = match["value"].strip()
        is_text = "'" in value or '"' in value or "pass" in match["name"].lower()
        if is_text and not _HARMLESS.fullmatch(value):
            return f"{match['name']}{match['equals']}{MASK}{statement[len(statement.rstrip()) :]}"
    return _LOGIN.sub("://(hidden)@", _ENTRY.sub(_masked_entry, statement))


def _masked_entry(match: re.Match[str]) -> str:
    value = MASK if is_secret_name(match["name"].strip("'\"")) else match["value"]
    return f"{match['name']}{match['colon']}{value}"
