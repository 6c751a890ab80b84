"""The chat template that a configuration names: one of mmjax's, or the tokenizer's own.

`Conversations.template` and a saved prompt format name one.
"""

from data.errors import DataError
from data.text.hugging_face_tokenizer import HuggingFaceTokenizer
from data.text.rendering import ConversationTemplate
from data.text.templates.chat_template import CHAT_TEMPLATES
from data.text.tokenizer import Tokenizer

OWN_TEMPLATE = "tokenizer"
"""Name of the template that the tokenizer itself has."""


def find_template(name: str, tokenizer: Tokenizer, setting: str = "template") -> ConversationTemplate:
    """The template of a name.

    Args:
        name: A name of `CHAT_TEMPLATES`, or `OWN_TEMPLATE`.
        tokenizer: The tokenizer.
        setting: The setting that has the name, for messages.

    Raises:
        DataError: There is no template of that name, or the tokenizer has none of its own.
    """
    if name in CHAT_TEMPLATES:
        return CHAT_TEMPLATES[name]
    if name != OWN_TEMPLATE:
        raise DataError(f"{setting} is {name!r}; choose one of {', '.join([*CHAT_TEMPLATES, OWN_TEMPLATE])}")
    if not isinstance(tokenizer, HuggingFaceTokenizer) or tokenizer.chat_template is None:
        raise DataError(
            f"{setting} is {name!r}, and the tokenizer has no chat template of its own: no chat_template.jinja, and no "
            f"chat_template in tokenizer_config.json beside tokenizer.json; choose one of {', '.join(CHAT_TEMPLATES)}"
        )
    from data.text.templates.jinja_template import JinjaTemplate  # needs the extra `chat`

    return JinjaTemplate(tokenizer.chat_template, tokenizer.control_token_patterns)
