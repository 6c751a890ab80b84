import fractions
import io
import struct

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data.errors import BadSampleError
from data.host_faults import retried
from data.media.clips.video import read_frames, read_header
from data.media.clips.video_sampling import VideoHeader
from data.records import Media
from tests.clips import STEP, clip_file, copied, frame_number


def as_media(content):
    return Media("a clip", content=content)


def numbers_at(content, numbers):
    """The numbers of the frames shown in the middle of each of these, at a constant rate."""
    media = as_media(content)
    header = read_header(media)
    times = [(number + 0.5) / header.rate for number in numbers]
    return [frame_number(pixels) for pixels in read_frames(media, header, times)]


CONTAINERS = {
    "mp4": {},
    "mp4, index first": {"settings": {"movflags": "faststart"}},
    "mp4, fragments": {"settings": {"movflags": "frag_keyframe+empty_moov"}},
    "matroska": {"kind": "matroska"},
    "webm": {"kind": "webm", "codec": "libvpx-vp9"},
    "mpegts": {"kind": "mpegts"},
    "mov, mpeg4": {"kind": "mov", "codec": "mpeg4"},
    "avi": {"kind": "avi", "codec": "mpeg4"},
    "avi, reordered frames": {"kind": "avi"},
}


@pytest.mark.parametrize("form", CONTAINERS.values(), ids=CONTAINERS)
def test_every_frame_is_found_by_its_time(form):
    content = clip_file(24, **form)
    header = read_header(as_media(content))
    assert (header.rate, header.height, header.width) == (6.0, 32, 48)
    assert abs(header.frames - 24) <= (form.get("kind") == "mpegts")
    assert numbers_at(content, range(23)) == list(range(23))


SECOND = {"times": [1000 + 1000 * number // 6 for number in range(24)]}  # 4 s of pictures that begin at 1 s

SOUNDS = {
    "matroska": {"kind": "matroska", "sound": ("aac", 4.0)},
    "webm, longer sound": {"kind": "webm", "codec": "libvpx-vp9", "sound": ("libopus", 4.2)},
    "flv": {"kind": "flv", "sound": ("aac", 4.0)},
    "flv, longer sound": {"kind": "flv", "sound": ("aac", 9.0)},
    "matroska, shorter sound": {"kind": "matroska", "sound": ("aac", 2.0)},
    "matroska, much longer sound": {"kind": "matroska", "sound": ("aac", 24.0)},
    "mpegts, longer sound": {"kind": "mpegts", "sound": ("aac", 30.0)},
    "mov, longer sound": {"kind": "mov", "sound": ("aac", 30.0)},
    "fragments, longer sound": {"sound": ("aac", 6.0), "settings": {"movflags": "frag_keyframe+empty_moov"}},
    "matroska without length": {"kind": "matroska", "sound": ("aac", 6.0), "settings": {"live": "1"}},
    "matroska from 1 s": {"kind": "matroska", **SECOND},
    "matroska from 1 s, sound": {"kind": "matroska", "sound": ("aac", 5.0), **SECOND},
    "mp4 from 1 s, sound": {"sound": ("aac", 5.0), **SECOND},
    "flv from 1 s, sound": {"kind": "flv", "sound": ("aac", 5.5), **SECOND},
    "mpegts from 1 s, sound": {"kind": "mpegts", "sound": ("aac", 5.0), **SECOND},
}


@pytest.mark.parametrize("form", SOUNDS.values(), ids=SOUNDS)
def test_the_length_of_a_clip_is_that_of_its_pictures(form):
    content = clip_file(24, **form)
    header = read_header(as_media(content))
    assert header.frames / header.rate == pytest.approx(4.0, abs=0.01)
    decoded = decoded_numbers(content)
    assert decoded == list(range(24))
    assert numbers_at(content, range(header.frames)) == decoded


def decoded_numbers(content):
    """The numbers of all frames, as PyAV decodes them."""
    with av.open(io.BytesIO(content)) as container:
        return [frame_number(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


@pytest.mark.parametrize("start, shown", [(2.0, 12), (2.5, 9), (0.5, 21)])
def test_frames_that_an_edit_list_hides_are_not_counted(start, shown):
    content = copied(clip_file(24, key_frames=24), start=start)
    with av.open(io.BytesIO(content)) as container:
        assert container.streams.video[0].frames == 24  # those of the track
    assert read_header(as_media(content)) == VideoHeader(shown, 6.0, 32, 48)
    assert numbers_at(content, range(shown)) == decoded_numbers(content) == list(range(24 - shown, 24))


def test_an_edit_list_may_hide_the_end():
    content = bytearray(clip_file(24))
    edit = content.index(b"elst") + 12  # of the length, behind version, flags and count
    content[edit : edit + 4] = (2500).to_bytes(4, "big")
    content = bytes(content)
    assert read_header(as_media(content)) == VideoHeader(15, 6.0, 32, 48)
    assert numbers_at(content, range(15)) == decoded_numbers(content) == list(range(15))


def test_names_and_comments_may_be_of_any_encoding(tmp_path):
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        container.metadata["title"] = "Cafe"
        stream = container.add_stream("libx264", rate=6)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 48, 3), np.uint8), format="rgb24")))
        container.mux(stream.encode(None))
    content = (tmp_path / "a.mkv").read_bytes()
    assert b"Cafe" in content
    assert read_header(as_media(content.replace(b"Cafe", b"Caf\xe9"))) == VideoHeader(1, 6.0, 32, 48)


@pytest.mark.parametrize("rate", [fractions.Fraction(30000, 1001), fractions.Fraction(24000, 1001), 50])
def test_frames_of_broadcast_rates_are_exact(rate):
    content = clip_file(27, rate, kind="matroska")  # times are rounded to milliseconds
    assert numbers_at(content, range(27)) == list(range(27))


@pytest.mark.parametrize("kind", ["mp4", "matroska", "mpegts", "avi"])
@pytest.mark.parametrize("jumps", [(0, 13, 27), (5, 6, 26), (25,), (7, 8, 9, 16, 24)])
def test_seeking_finds_the_same_frames_as_decoding_everything(kind, jumps):
    content = clip_file(28, rate=1, kind=kind)  # frames a second apart, so that most jumps are seeks
    decoded = numbers_at(content, range(max(jumps) + 1))
    assert numbers_at(content, jumps) == [decoded[number] for number in jumps] == list(jumps)


@pytest.mark.parametrize("frames", range(16, 28))
def test_the_last_frames_of_an_avi_are_found_behind_any_key_frame(frames):
    content = clip_file(frames, rate=1, kind="avi")
    assert numbers_at(content, [0, frames - 2]) == [0, frames - 2]
    assert numbers_at(content, [0, frames - 1]) == [0, frames - 1]


gaps = st.lists(st.integers(20, 3000), min_size=3, max_size=12)


@given(gaps=gaps, data=st.data())
@settings(max_examples=15, deadline=None)
def test_frames_of_variable_rate_are_shown_from_their_time_until_the_next(gaps, data):
    times = np.cumsum([0, *gaps])
    media = as_media(clip_file(len(times), 30, times=times.tolist(), kind="matroska"))
    header = read_header(media)
    wanted = sorted(data.draw(st.lists(st.integers(0, int(times[-1]) - 1), min_size=1, max_size=6)))
    wanted = [time for time in wanted if np.abs(times - time).min() > 1]  # times are rounded to milliseconds
    shown = [int(np.searchsorted(times, time, "right")) - 1 for time in wanted]
    frames = read_frames(media, header, [time / 1000 for time in wanted])
    assert [frame_number(pixels) for pixels in frames] == shown


# The matrix of a track (ISO/IEC 14496-12, section 8.3.2) for each clockwise turn; phones hold portraits by the second.
_MATRICES = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}


@pytest.mark.parametrize("clockwise", _MATRICES)
def test_frames_are_upright(clockwise):
    content = clip_file(4, marked=True)
    track = content.index(b"tkhd") + 4
    a, b, c, d = (value << 16 for value in _MATRICES[clockwise])
    matrix = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    media = as_media(content[: track + 40] + matrix + content[track + 76 :])
    header = read_header(media)
    assert (header.height, header.width) == ((32, 48) if clockwise % 180 == 0 else (48, 32))
    for pixels in read_frames(media, header, [0.0, 0.5]):
        upright = np.rot90(pixels, clockwise // 90)  # as it was stored
        assert upright[:14, :22].min() > 230
        assert max(upright[18:].max(), upright[:, 26:].max()) < 60


def test_a_clip_of_one_frame():
    content = clip_file(1)
    assert read_header(as_media(content)) == VideoHeader(1, 6.0, 32, 48)
    assert numbers_at(content, [0]) == [0]


@pytest.mark.parametrize(
    "kept, settings, reason",
    [
        (0.8, {}, "Invalid data|End of file"),  # the index at the end is missing
        (0.8, {"settings": {"movflags": "faststart"}}, "truncated|Invalid data"),
        (0.6, {"kind": "matroska"}, "its packets end at .* s where the header announces 4.00 s: the file is truncated"),
        (0.6, {"kind": "matroska", "sound": ("aac", 4.0)}, "its packets end at .* announces 4.03 s: the file is"),
        (0.6, {"kind": "flv", "sound": ("aac", 4.0)}, "its packets end at .* announces 4.34 s: the file is"),
        (0.8, {"sound": ("aac", 4.0), "settings": {"movflags": "faststart"}}, "truncated|Invalid data"),
        (0.05, {"kind": "matroska"}, "Input/output error|truncated|Invalid data"),
        (0.0, {}, "Invalid data"),
    ],
)
def test_truncated_files_are_refused_with_their_name(kept, settings, reason):
    content = clip_file(24, **settings)
    with pytest.raises(BadSampleError, match=rf"a clip cannot be read \(.*({reason})"):
        numbers_at(content[: int(kept * len(content))], range(24))


def test_missing_frames_are_counted():
    media = as_media(clip_file(6, kind="matroska"))
    header = VideoHeader(12, 6.0, 32, 48)
    frames = read_frames(media, header, [0.1, 1.9])
    assert frame_number(next(frames)) == 0
    with pytest.raises(BadSampleError, match="its frames end at 1.00 s where its packets end at 2.00 s: the file is"):
        next(frames)


@pytest.mark.parametrize("milliseconds, rate", [(100, 10.0), (500, 2.0)])
def test_an_animation_is_a_clip(milliseconds, rate):
    frames = [Image.new("RGB", (48, 32), (STEP * number,) * 3) for number in range(12)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
    assert read_header(as_media(file.getvalue())) == VideoHeader(12, rate, 32, 48)
    assert numbers_at(file.getvalue(), range(12)) == list(range(12))


def test_the_refusal_of_another_format_names_those_that_are_read():
    file = io.BytesIO()
    Image.new("RGB", (48, 32)).save(file, "WEBP")
    with pytest.raises(BadSampleError, match="Invalid argument; read are mov, mp4, matroska, webm, avi, .* gif"):
        read_header(as_media(file.getvalue()))


def test_files_without_video_are_refused(tmp_path):
    playlist = (
        b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n" + str(tmp_path / "a.ts").encode() + b"\n#EXT-X-ENDLIST\n"
    )
    (tmp_path / "a.ts").write_bytes(clip_file(kind="mpegts"))
    for content in (playlist, b"", b"text", bytes(5000)):
        with pytest.raises(BadSampleError, match="a clip cannot be read"):
            read_header(as_media(content))
    with pytest.raises(BadSampleError, match="No such file"):
        read_header(Media.from_file(tmp_path / "missing.mp4"))


def test_a_file_of_sound_alone_has_no_video_stream():
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=16000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1600), np.int16), format="s16", layout="mono")
        sound.sample_rate = 16000
        container.mux(stream.encode(sound))
        container.mux(stream.encode(None))
    with pytest.raises(BadSampleError, match="no video stream"):
        read_header(as_media(file.getvalue()))


@given(position=st.floats(0, 1), damage=st.binary(min_size=1, max_size=40))
@settings(max_examples=25, deadline=None)
def test_damaged_files_give_frames_or_bad_sample_error(position, damage):
    content = bytearray(clip_file(8))
    start = int(position * (len(content) - len(damage)))
    content[start : start + len(damage)] = damage
    try:
        retried(lambda: numbers_at(bytes(content), range(8)), "a clip")  # FFmpeg runs out of memory for some headers
    except BadSampleError as error:
        assert error.where == "a clip"
