"""The base of every error that is a user's to mend, on the lowest floor so that all the others can raise it."""


class UserError(Exception):
    """What the user asked for can't be done; the message names the culprit and the mend.

    Command lines print the message alone and exit with 2. Any other exception is a fault of ours: it keeps its
    traceback.
    """
