"""How the samples of a source are laid out, for the time when a trained model is asked and its data are not at hand."""

import dataclasses
import json

from data.errors import DataError
from data.media import tiling as tilings
from data.media.tiling import ImageTiling


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """How a source lays out what is asked.

    Attributes:
        template: Name of a chat template (`data.text.chat_template.TEMPLATES`).
        drawing: Name of the template of what is to be drawn.
        tiling: How a picture becomes images; None for one image of its own resolution.
    """

    template: str = "question"
    generation_template: str = "plain"
    tiling: ImageTiling | None = None

    def to_json(self) -> str:
        """Text for `from_json`."""
        tiling = self.tiling and {"kind": type(self.tiling).__name__, **dataclasses.asdict(self.tiling)}
        return json.dumps({"template": self.template, "generation_template": self.generation_template, "tiling": tiling}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "PromptFormat":
        """What `to_json` wrote; raises DataError for another text."""
        try:
            fields = json.loads(text)
            given = fields["tiling"]
            tiling = given and getattr(tilings, given.pop("kind"))(**given)
            return cls(fields["template"], fields["generation_template"], tiling)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"not written by PromptFormat.to_json: {error!r}") from error
