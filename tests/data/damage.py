"""Damage done to files: whatever it is, reading gives what a file held or errors about data."""

from hypothesis import strategies as st

from data.errors import BadSampleError, DataError


def damaged(data, content: bytes) -> bytes:
    """Some bytes changed, half of them where the header is, and the end cut off."""
    changed = bytearray(content)
    reach = st.sampled_from([min(64, len(changed)), len(changed)])
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, data.draw(reach) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed[: data.draw(st.integers(0, len(changed)))])


def damage_file(data, path) -> None:
    """Changes some bytes of a file, those that are not zero, and may cut its end off."""
    content = bytearray(path.read_bytes())
    used = [place for place, byte in enumerate(content) if byte]
    for _ in range(data.draw(st.integers(0, 6))):
        content[data.draw(st.sampled_from(used))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))]))


def read_or_refuse(kind, path) -> None:
    """Opens a record source and reads ten records: each has turns or a reason, unless the file is refused."""
    try:
        source = kind(str(path))
    except DataError:
        return
    for index in range(min(len(source), 10)):
        try:
            assert source[index].turns
        except BadSampleError as error:
            assert error.reason
