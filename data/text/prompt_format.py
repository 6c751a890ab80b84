"""The prompt format of a data set, saved with a trained model so that generation needs no data set."""

import dataclasses
import json

from configs.strict_json import parse_json
from data.errors import DataError
from data.media.tiling import DynamicTiling, ImageTiling, NativeResolution

_TILINGS = {tiling.__name__: tiling for tiling in (DynamicTiling, NativeResolution)}


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """How a data set lays out prompts.

    Attributes:
        template: Name of the chat template (`data.text.chat_template.CHAT_TEMPLATES`) of prompts answered by text.
        generation_template: Name of the chat template of prompts answered by an image.
        tiling: How an input image becomes encoder images; None for one image at its own resolution.
    """

    template: str = "question"
    generation_template: str = "plain"
    tiling: ImageTiling | None = None

    def to_json(self) -> str:
        """Text for `from_json`."""
        tiling = self.tiling and {"kind": type(self.tiling).__name__, **dataclasses.asdict(self.tiling)}
        fields = {"template": self.template, "generation_template": self.generation_template, "tiling": tiling}
        return json.dumps(fields, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "PromptFormat":
        """The format that `to_json` wrote; raises DataError for another text."""
        try:
            fields = parse_json(text, "the prompt format", DataError)
            tiling, template, generation_template = (
                fields[name] for name in ("tiling", "template", "generation_template")
            )
            if tiling is not None:
                tiling = _TILINGS[tiling.pop("kind")](**tiling)
            if not (isinstance(template, str) and isinstance(generation_template, str)):
                raise TypeError("a template's name is a text")
            return cls(template, generation_template, tiling)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"not written by PromptFormat.to_json: {error!r}") from error
