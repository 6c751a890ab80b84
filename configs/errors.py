"""The base class of errors that a user can fix; it is in the lowest import level so that all packages can raise it."""


class UserError(Exception):
    """The user asked for something that cannot be done; the message names the culprit and the remedy.

    Commands print the message alone and exit with code 2. Any other exception is a bug and keeps its traceback.
    """
