"""Index of the members of a tar from its headers alone: payloads are skipped, so a shard costs one read a member.

`WebDataset` reads its shards by it.
"""

import dataclasses
import pathlib
import tarfile
from typing import BinaryIO

from data.errors import DataError

_BLOCK = 512
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}
_MAX_EXTENDED_HEADER = 1 << 20  # bytes


@dataclasses.dataclass(frozen=True)
class TarMember:
    """A regular file of a tar: its name, and the offset and size of its bytes."""

    name: str
    offset: int
    size: int


@dataclasses.dataclass(frozen=True)
class TarIndex:
    """The content of a tar.

    Attributes:
        members: Files of the tar in order. The header of the last one may announce more bytes than there are.
        size: Size of the tar in bytes.
        damage: Why it ends before its end mark; empty for a complete tar.
    """

    members: tuple[TarMember, ...]
    size: int
    damage: str

    def is_truncated(self, member: TarMember) -> bool:
        """Whether the tar ends within the member."""
        return member.offset + member.size > self.size


def index_tar(path: str) -> TarIndex:
    """Reads the headers of an uncompressed tar (ustar, GNU or pax).

    Raises:
        DataError: The file is not a tar, is compressed, or cannot be read.
    """
    size = pathlib.Path(path).stat().st_size
    members: list[TarMember] = []
    try:
        with pathlib.Path(path).open("rb", buffering=0) as file:
            damage = _scan(file, size, members)
    except tarfile.HeaderError as error:
        raise DataError(f"{path} is not a tar ({error}); replace it or leave it out") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); replace it or leave it out") from error
    return TarIndex(tuple(members), size, damage)


def _scan(file: BinaryIO, size: int, members: list[TarMember]) -> str:
    """Adds the members and returns the damage; raises HeaderError or DataError if the first header is invalid."""
    offset, name, real_size = 0, "", -1  # name and size from an extended header, for the next member
    while True:
        header = _read(file, min(offset, size), _BLOCK)
        if not offset:
            _check_start(file, header)
        if len(header) < _BLOCK:
            return f"the file is truncated at byte {size}"
        plain = None if name or real_size >= 0 else _plain(header)
        if plain:
            members.append(TarMember(plain[0], offset + _BLOCK, plain[1]))
            offset += _BLOCK + -(-plain[1] // _BLOCK) * _BLOCK
            continue
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            if header.count(0) == _BLOCK:
                return ""
            if not offset:
                raise
            return f"the header at byte {offset} is damaged ({error})"
        payload = offset + _BLOCK
        length = real_size if real_size >= 0 else info.size
        if length < 0:
            return f"the header at byte {offset} is damaged (a negative size)"
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            if length > _MAX_EXTENDED_HEADER:
                return f"the header at byte {offset} is damaged (an extension of {length} bytes)"
            extension = _read(file, payload, length)
            if len(extension) < length:
                return f"the file is truncated at byte {size}"
            if info.type == tarfile.GNUTYPE_LONGNAME:
                name = extension.split(b"\0")[0].decode("utf-8", "surrogateescape")
            else:
                name, real_size = _pax(extension, name)
        else:
            # Links and folders have no payload, whatever their size says.
            has_payload = info.type not in (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE)
            if info.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE):
                members.append(TarMember(name or info.name, payload, length))
            if info.type not in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
                name, real_size = "", -1
            length = length if has_payload else 0
        offset = payload + -(-length // _BLOCK) * _BLOCK


def _plain(header: bytes) -> tuple[str, int] | None:
    """Name and size of a regular file with an ordinary header, in a third of `frombuf`'s time; None for others."""
    if header[257:262] != b"ustar" or header[156] != ord("0"):
        return None
    size, checksum = header[124:135], header[148:154]
    if not (size.isdigit() and checksum.isdigit()):
        return None
    try:
        # The checksum counts its own eight bytes as spaces.
        if int(checksum, 8) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            return None
        name, prefix = (field.split(b"\0", 1)[0] for field in (header[:100], header[345:500]))
        prefix = prefix if header[262] == 0 else b""  # GNU tars have times there
        return (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape"), int(size, 8)
    except ValueError:  # a digit that is not octal
        return None


def _check_start(file: BinaryIO, header: bytes) -> None:
    kind = next((kind for magic, kind in _COMPRESSED.items() if header.startswith(magic)), "")
    if kind and header[257:262] != b"ustar":
        raise DataError(f"{file.name} is compressed ({kind}), so its members cannot be located; decompress it")
    if len(header) < _BLOCK:
        raise tarfile.HeaderError("shorter than a header")


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    """Bytes of a range, fewer at the end of the file."""
    file.seek(offset)
    return file.read(size)


def _pax(extension: bytes, name: str) -> tuple[str, int]:
    """The name and size that a pax header gives the next member; the given name and -1 where it has none."""
    size = -1
    while extension:
        digits, _, rest = extension.partition(b" ")
        if not digits.isdigit() or len(digits) > 9 or int(digits) <= len(digits) + 1:
            break  # malformed: the entries read so far are kept
        record, extension = rest[: int(digits) - len(digits) - 1], extension[int(digits) :]
        keyword, _, value = record.removesuffix(b"\n").partition(b"=")
        if keyword == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif keyword == b"size" and value.isdigit() and len(value) < 19:
            size = int(value)
    return name, size
