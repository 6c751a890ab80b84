"""Files that are there whole or not at all, in the lowest import level, and errors of writing that name the file.

Files of a run, plans and lists of refused samples are written so.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator


def write_whole(path: str | os.PathLike[str], text: str, *, private: bool = False) -> None:
    """Writes a text to a file, which is replaced at once; a failed or killed write leaves the earlier one as it was.

    Args:
        path: The file; its folder is made if it is not there.
        text: The whole content of the file.
        private: Whether only its owner may read it (mode 600).

    Raises:
        OSError: It cannot be written, for instance because the disk is full; the error names the file.
    """
    path = pathlib.Path(path)
    whole = path.with_name(f"{path.name}.tmp")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            number = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
            with open(number, "w", encoding="utf-8") as file:
                if private:
                    os.fchmod(number, 0o600)  # one that a killed write left may have another mode
                file.write(text)
            whole.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                whole.unlink()
            raise


def append_whole(path: str | os.PathLike[str], text: str) -> None:
    """Appends a whole text to a file, or nothing: if the disk fills up, the bytes already written are removed.

    Raises:
        OSError: It cannot be written; the error names the file.
    """
    with naming(path), open(path, "ab", buffering=0) as file:
        size, rest = file.seek(0, os.SEEK_END), memoryview(text.encode())
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):  # of a device
                file.truncate(size)
            raise


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Adds the file's name to errors of the operating system inside, since errors of writes lack it."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
