"""The environment variables of this process, as launchers set them; `environments.py` reads them."""

from collections.abc import Mapping

from configs.common.errors import UserError


class Variables:
    """Environment variables; an empty one counts as one that is not set.

    Args:
        values: The variables by name, such as `os.environ`.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def has(self, name: str) -> bool:
        """Whether a variable is set."""
        return bool(self._values.get(name))

    def text(self, name: str, default: str = "") -> str:
        """The value of a variable."""
        return self._values.get(name) or default

    def number(self, name: str) -> int:
        """The value of a variable that is set. Raises UserError if it is not a whole number, 0 or more."""
        value = self._values[name]
        if not (value.isascii() and value.isdecimal() and len(value) <= 18):
            raise UserError(f"{name} is {value!r} in the environment; it must be a whole number")
        return int(value)

    def optional_number(self, name: str) -> int | None:
        """The value of a variable, or None if it is not set. Raises UserError as `number`."""
        return self.number(name) if self.has(name) else None
