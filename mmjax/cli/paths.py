"""Parsers of flags that name files and folders to write: writing is tried when flags are parsed, before any work."""

import argparse
import pathlib
import tempfile


def output_file(text: str) -> str:
    """Parses the path of a file to write, and tries to; a file that did not exist is removed again."""
    path = pathlib.Path(text)
    try:
        if not text.strip() or path.is_dir():
            raise argparse.ArgumentTypeError(f"{text!r} is not the path of a file")
        if not path.absolute().parent.is_dir():
            raise argparse.ArgumentTypeError(f"there is no folder {path.parent} to write {path.name} to")
        existed = path.exists()
        path.open("ab").close()
        if not existed:
            path.unlink()
    except (OSError, ValueError) as error:
        raise _unwritable(text, error) from error
    return text


def output_folder(text: str) -> str:
    """Parses the path of a folder to write to, which need not exist, and tries to write where it is or will be."""
    path = pathlib.Path(text).absolute()
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a local folder, and files are written to local folders alone"
        )
    try:
        base = next(folder for folder in (path, *path.parents) if folder.exists())
        if not text.strip() or not base.is_dir():
            raise argparse.ArgumentTypeError(f"{text!r} is not the path of a folder: {base} is a file")
        tempfile.TemporaryFile(dir=base).close()
    except (OSError, ValueError) as error:
        raise _unwritable(text, error) from error
    return text


def _unwritable(text: str, error: Exception) -> argparse.ArgumentTypeError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return argparse.ArgumentTypeError(f"{text!r} cannot be written: {reason}")
