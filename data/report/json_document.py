"""A description of a data set as a JSON document."""

import dataclasses
from typing import Any

from data.report.description import DatasetDescription
from data.report.plain_words import in_words


def description_json(description: DatasetDescription) -> dict[str, Any]:
    """The whole description but its examples as JSON values."""
    fields = dataclasses.asdict(dataclasses.replace(description, examples=()))
    del fields["examples"]
    refused = [dataclasses.asdict(summary) for summary in description.refused]
    refusals = [refusal._asdict() for refusal in description.refusals]
    isf_gin = {found: suggestion.gin for found, suggestion in description.isf_suggestions.items()}
    derived = {
        "remark": description.remark,
        "gin": description.gin,
        "isf_gin": isf_gin,
        "words": in_words(description),
    }
    return fields | {"refused": refused, "refusals": refusals} | derived
