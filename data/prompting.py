"""How the samples of a source are laid out, for the time when a trained model is asked and its data are not at hand."""

import dataclasses
import json

from data import tiling as tilings
from data.errors import DataError
from data.tiling import Tiling


@dataclasses.dataclass(frozen=True)
class Prompting:
    """How a source lays out what is asked.

    Attributes:
        template: Name of a chat template (`data.chat.TEMPLATES`).
        drawing: Name of the template of what is to be drawn.
        tiling: How a picture becomes images; None for one image of its own resolution.
    """

    template: str = "question"
    drawing: str = "plain"
    tiling: Tiling | None = None

    def to_json(self) -> str:
        """Text for `from_json`."""
        tiling = self.tiling and {"kind": type(self.tiling).__name__, **dataclasses.asdict(self.tiling)}
        return json.dumps({"template": self.template, "drawing": self.drawing, "tiling": tiling}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Prompting":
        """What `to_json` wrote; raises DataError for another text."""
        try:
            fields = json.loads(text)
            given = fields["tiling"]
            tiling = given and getattr(tilings, given.pop("kind"))(**given)
            return cls(fields["template"], fields["drawing"], tiling)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"not written by Prompting.to_json: {error!r}") from error
