"""Whether a config.json tells all of an architecture."""

import dataclasses

from mmjax.weights.published.rules import Config

OURS_ALONE = ("name",)
"""Fields that no config.json tells."""


def require_round_trip(config: Config, again: Config, except_fields: tuple[str, ...] = ()) -> None:
    """Checks that what was read from a written config.json is what was written.

    Args:
        config: What was written.
        again: What `read_config` makes of it.
        besides: Fields, beside the name, that are none of theirs.

    Raises:
        ValueError: They differ: theirs can't compute some field as it is. All are named with both values.
    """
    lost = [
        f"{field.name} is {getattr(config, field.name)!r}, only {getattr(again, field.name)!r} is there"
        for field in dataclasses.fields(config)
        if field.name not in (*OURS_ALONE, *except_fields) and getattr(config, field.name) != getattr(again, field.name)
    ]
    if lost:
        raise ValueError("; ".join(lost))
