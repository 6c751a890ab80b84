"""Optional dependencies: packages that only some data needs, each installed by an extra of mmjax.

A module that cannot do without such a package imports it as

    try:
        import soundfile
    except ImportError as error:
        raise missing_extra("decoding audio", "audio", error) from error

and modules that need it for some data only import that module in the function that handles such data.
"""

from data.errors import DataError


def missing_extra(purpose: str, extra: str, error: ImportError) -> DataError:
    """The error for a package that is not installed.

    Args:
        purpose: Purpose of the package, the subject of the message.
        extra: Extra of mmjax that installs it.
        error: The exception of the import.
    """
    package = (error.name or str(error)).partition(".")[0]
    return DataError(f"{purpose} needs the package {package}, which is not installed: pip install 'mmjax[{extra}]'")
