"""The exception that refuses a plan; raised by plans themselves and by whatever checks one against a model."""

from configs.common.errors import UserError


class PlanError(UserError):
    """A plan that cannot run; the message gives the reason and the remedy."""


class UnitFieldError(PlanError, ValueError):
    """A record of a unit that contradicts itself; whoever reads it from a file adds which unit's it is."""
