"""Damage done to files: whatever it is, reading gives what a file held or errors about data."""

from hypothesis import strategies as st

from data.errors import BadSampleError, DataError


def damaged(data, content: bytes) -> bytes:
    """Some bytes changed, half of them where the header is; the end may be cut off."""
    changed = bytearray(content)
    reach = st.sampled_from([min(64, len(changed)), len(changed)])
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, data.draw(reach) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed[: data.draw(st.just(len(changed)) | st.integers(0, len(changed)))])


def damage_file(data, path) -> None:
    """Changes some bytes of a file, those that are not zero, and may cut its end off."""
    content = bytearray(path.read_bytes())
    used = [place for place, byte in enumerate(content) if byte]
    for _ in range(data.draw(st.integers(0, 6))):
        content[data.draw(st.sampled_from(used))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))]))


def count_readable(kind, path) -> int:
    """Opens a record source and counts the readable ones of ten records; the others, or the file, have a reason."""
    readable = 0
    try:
        source = kind(str(path))
    except DataError:
        return 0
    for index in range(min(len(source), 10)):
        try:
            assert source[index].turns
        except BadSampleError as error:
            assert error.reason
        else:
            readable += 1
    return readable
