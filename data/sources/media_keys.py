"""Keys of entries that name media: keys that are read, and keys that are refused because nothing reads them."""

import re
from collections.abc import Collection, Mapping

from data.errors import BadSampleError
from data.records import MEDIA_PARTS

_MEDIA_WORDS = frozenset(
    ("image", "images", "img", "imgs", "picture", "pictures", "photo", "photos", "audio", "audios", "sound", "sounds")
    + ("wav", "video", "videos", "clip", "clips", "frame", "frames", "media", "medium")
)
# Beside a word for media in a key, these words (without digits) say that the value names the media itself; other words,
# such as "size", that the value describes it.
_NAMING_WORDS = frozenset(
    ("path", "paths", "file", "files", "filename", "filenames", "name", "names", "url", "urls", "uri", "uris")
    + ("src", "list", "data", "bytes", "base", "b", "folder", "dir")
)
_READ_ENDINGS = ("", "s", "_path", "_paths", "_file", "_files")
_FILE = re.compile(
    r"data:(image|audio|video)/|\S+\.(jpe?g|png|webp|gif|bmp|tiff?|heic|avif|wav|flac|mp3|ogg|opus|m4a|mp4|webm|mkv|mov|avi)$",
    re.IGNORECASE,
)
_MAX_VALUES = 1000  # of a list or an object, among which a file's name is searched


def media_values(where: str, entry: Mapping[str, object], own_keys: Collection[str]) -> dict[str, object]:
    """The values that name an entry's media, by kind (`data.records.MEDIA_PARTS`); absent for kinds without a key.

    The keys of a kind are, for images, `image`, `images`, `image_path`, `image_paths`, `image_file` and `image_files`.

    Args:
        where: Name of the sample.
        entry: The entry.
        own_keys: Keys that hold something else, such as the conversation.

    Raises:
        BadSampleError: Two keys of a kind have values, or a key that is not read names media.
    """
    values: dict[str, object] = {}
    read = {f"{kind}{ending}": kind for kind in MEDIA_PARTS for ending in _READ_ENDINGS}
    key_of_kind: dict[str, str] = {}
    for key, kind in read.items():
        if key not in entry:
            continue
        if _is_given(values.get(kind)) and _is_given(entry[key]):
            raise BadSampleError(where, f"it has both {key_of_kind[kind]!r} and {key!r}; keep one")
        if not _is_given(values.get(kind)):
            values[kind], key_of_kind[kind] = entry[key], key
    refuse_media_keys(where, entry, {*own_keys, *read}, any(map(_is_given, values.values())))
    return values


def refuse_media_keys(
    where: str, entry: Mapping[str, object], known: Collection[str], has_media: bool, holder: str = "it"
) -> None:
    """Refuses keys that name media and are not read.

    Such a key consists of words for media and for files (`img`, `pictureUrl`) and has a value; or its name has a word
    for media (`image_source`), or nothing else names any, and its value is the name of a file of media.

    Args:
        where: Name of the sample.
        entry: Values by key.
        known: Keys that are read.
        has_media: Whether media are read from other keys.
        holder: Name of the object with the keys, for the message.

    Raises:
        BadSampleError: There is such a key.
    """
    for key, value in entry.items():
        if key in known or not _is_given(value) or isinstance(value, bool | int | float):
            continue
        may_name = not has_media or bool(_words(key) & _MEDIA_WORDS)
        if names_media(key) or (may_name and _names_file(value)):
            raise BadSampleError(
                where,
                f"{holder} has {key!r}, which names media and is not read; media of an entry are in "
                f"{', '.join(MEDIA_PARTS)}, each the path of a file or a list of paths",
            )


def names_media(key: str) -> bool:
    """Whether a key, or the name of a column, consists of words for media and for files."""
    words = _words(key)
    return bool(words & _MEDIA_WORDS) and words <= _MEDIA_WORDS | _NAMING_WORDS


def _is_given(value: object) -> bool:
    """Whether a value of JSON or of a table is more than a null, an empty text, list or object."""
    return value is not None and value not in ("", b"", [], {})


def _words(key: str) -> set[str]:
    return {word.lower() for word in re.split(r"[\W_\d]+|(?<=[a-z])(?=[A-Z])", key)} - {""}


def _names_file(value: object) -> bool:
    """Whether a text in a value is the name of a file of media."""
    values = [value]
    for inner in values:
        if isinstance(inner, str) and _FILE.match(inner):
            return True
        if isinstance(inner, list | dict) and len(values) < _MAX_VALUES:
            values += list(inner.values() if isinstance(inner, dict) else inner)[:_MAX_VALUES]
    return False
