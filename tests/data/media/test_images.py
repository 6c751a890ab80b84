import functools
import io
import math
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, PngImagePlugin, TiffImagePlugin, TiffTags

from data.errors import BadSampleError
from data.media import images
from data.media.images import MAX_PIXELS, image_size, read_image, save_image
from data.media.patches import to_unit_range
from data.records import Media
from tests.data.damage import damaged
from tests.data.real_data import photographs

LOSSLESS = ("PNG", "BMP", "TIFF", "PPM")


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def encoded(image, form, **options):
    """The image as a file of that format in memory."""
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return Media(where=f"a.{form.lower()}", content=stream.getvalue())


def read_both(media):
    """The pixels; the header must have promised their size."""
    pixels = read_image(media)
    assert image_size(media) == pixels.shape[:2]
    return pixels


def oriented(pixels, form, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(Image.fromarray(pixels), form, exif=exif)


@pytest.mark.parametrize("form", LOSSLESS)
def test_lossless_formats_keep_every_pixel(form):
    np.testing.assert_array_equal(read_both(encoded(Image.fromarray(noise(5, 7)), form)), noise(5, 7))


@pytest.mark.parametrize(("form", "error"), [("JPEG", 6), ("WEBP", 6), ("JPEG2000", 1), ("GIF", 12)])
def test_lossy_formats_keep_photographs_recognizable(form, error):
    for pixels in photographs().values():
        read = read_both(encoded(Image.fromarray(pixels), form))
        assert read.shape == pixels.shape
        assert np.abs(read.astype(int) - pixels).mean() < error


def test_files_and_ranges_of_files_are_read(tmp_path):
    media = encoded(Image.fromarray(noise(5, 7)), "PNG")
    (tmp_path / "a.tar").write_bytes(b"before" + media.content + b"after")
    member = Media(where="a.tar!a", path=str(tmp_path / "a.tar"), offset=6, size=len(media.content))
    (tmp_path / "a.png").write_bytes(media.content)
    for one in (member, Media.from_file(tmp_path / "a.png")):
        np.testing.assert_array_equal(read_both(one), noise(5, 7))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_every_colour_mode_becomes_rgb(mode):
    form = "TIFF" if mode == "CMYK" else "PNG"
    grey = np.full((4, 6, 3), 255, np.uint8)
    pixels = read_both(encoded(Image.fromarray(grey).convert(mode), form))
    assert pixels.dtype == np.uint8
    np.testing.assert_allclose(pixels, grey, atol=1)


def test_transparent_areas_become_white():
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, :, 3] = (0, 51, 255)
    rgba = read_both(encoded(Image.fromarray(pixels), "PNG"))
    np.testing.assert_array_equal(rgba[0, :, 0], [255, 204, 0])
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.putpixel((1, 0), 1)
    read = read_both(encoded(palette, "PNG", transparency=0))
    np.testing.assert_array_equal(read, [[[255, 255, 255], [10, 20, 30]]])


def test_16_bit_greys_keep_their_upper_8_bits():
    greys = Image.fromarray(np.array([[0, 255, 256, 65535]], np.uint16))
    for form in ("PNG", "TIFF"):
        np.testing.assert_array_equal(read_both(encoded(greys, form))[0, :, 0], [0, 0, 1, 255])


@pytest.mark.parametrize("reader", [read_image, image_size])
def test_pixel_modes_of_unknown_range_are_refused(reader):
    with pytest.raises(BadSampleError, match="mode F have no known range"):
        reader(encoded(Image.fromarray(np.zeros((2, 2), np.float32)), "TIFF"))


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientations_are_undone(form, orientation):
    upright = noise(3, 5)
    # EXIF 2.32, orientation: which side of the scene the stored first row and first column are.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: np.rot90(upright),
        7: upright.swapaxes(0, 1)[::-1, ::-1],
        8: np.rot90(upright, -1),
    }[orientation]
    options = {"lossless": True} if form == "WEBP" else {}
    exif = Image.Exif()
    exif[0x0112] = orientation
    media = encoded(Image.fromarray(np.ascontiguousarray(stored)), form, exif=exif, **options)
    np.testing.assert_array_equal(read_both(media), upright)


def test_the_refusal_of_avif_names_the_formats_that_are_read():
    with pytest.raises(BadSampleError, match="no complete header of JPEG, PNG, WEBP, GIF, BMP, TIFF, PPM, JPEG2000"):
        read_both(encoded(Image.fromarray(noise(8, 8)), "AVIF"))


XMP_FORMS = {
    "attribute": '<x:xmpmeta><rdf:Description tiff:Orientation="{}"/></x:xmpmeta>',
    "element": "<x:xmpmeta><tiff:Orientation>{}</tiff:Orientation></x:xmpmeta>",
}


def with_xmp(pixels, form, xmp, **options):
    """An image whose orientation, if it has one, is that of its XMP packet."""
    if form == "PNG":
        text = PngImagePlugin.PngInfo()
        text.add_itxt("XML:com.adobe.xmp", xmp)
        options |= {"pnginfo": text}
    elif form == "TIFF":
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags[700], tags.tagtype[700] = xmp.encode(), TiffTags.BYTE
        for tag, value in options.pop("exif", {}).items():  # Pillow writes one or the other
            tags[tag] = value
        options |= {"tiffinfo": tags}
    else:
        options |= {"xmp": xmp.encode()}
    return encoded(Image.fromarray(pixels), form, **options)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP", "JPEG"])
@pytest.mark.parametrize("written", XMP_FORMS.values(), ids=XMP_FORMS)
@pytest.mark.parametrize("orientation", [1, 3, 6, 7, 9])
def test_orientations_in_xmp_alone_are_undone_as_pillow_does(form, written, orientation):
    options = {"lossless": True} if form == "WEBP" else {}
    media = with_xmp(noise(16, 24), form, written.format(orientation), **options)
    with Image.open(io.BytesIO(media.content)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    assert expected.shape == ((24, 16, 3) if orientation in (6, 7) else (16, 24, 3))
    np.testing.assert_array_equal(read_both(media), expected)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "JPEG"])
def test_an_orientation_in_exif_precedes_one_in_xmp(form):
    exif = Image.Exif()
    exif[0x0112] = 3
    media = with_xmp(noise(16, 24), form, XMP_FORMS["attribute"].format(6), exif=exif)
    with Image.open(io.BytesIO(media.content)) as image:
        np.testing.assert_array_equal(read_both(media), np.asarray(ImageOps.exif_transpose(image)))
    assert read_image(media).shape == (16, 24, 3)


def test_an_exif_block_that_imagemagick_wrote_as_text_is_read():
    exif = Image.Exif()
    exif[0x0112] = 6
    block = exif.tobytes()
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", f"\nexif\n{len(block):8}\n{block.hex()}\n", zip=True)
    media = encoded(Image.fromarray(noise(3, 5)), "PNG", pnginfo=text)
    np.testing.assert_array_equal(read_both(media), np.rot90(noise(3, 5), -1))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("international", [False, True])
def test_a_png_may_hold_megabytes_of_text(zipped, international):
    text = PngImagePlugin.PngInfo()
    add = text.add_itxt if international else text.add_text
    add("workflow", "a node " * 600_000, zip=zipped)
    media = encoded(Image.fromarray(noise(3, 5)), "PNG", pnginfo=text)
    np.testing.assert_array_equal(read_both(media), noise(3, 5))


def test_a_png_may_hold_a_colour_profile_of_megabytes():
    media = encoded(Image.fromarray(noise(3, 5)), "PNG", icc_profile=noise(1000, 700).tobytes())
    np.testing.assert_array_equal(read_both(media), noise(3, 5))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_bands_of_a_large_image_join_seamlessly(mode, orientation, monkeypatch):
    grey = Image.fromarray(np.arange(15, dtype=np.uint16).reshape(3, 5) * 4000)
    image = grey if mode == "I;16" else Image.fromarray(noise(3, 5)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    media = encoded(image, "PNG", exif=exif)
    whole = read_both(media)
    monkeypatch.setattr(images, "_BAND_PIXELS", 10)  # two rows of three
    np.testing.assert_array_equal(read_both(media), whole)


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_the_largest_image_takes_its_pixels_and_the_result_in_memory(mode, tmp_path):
    side = math.isqrt(MAX_PIXELS)
    Image.new(mode, (side, side), 1).save(tmp_path / "flat.png")
    program = (
        "import resource; from data.media.images import read_image; from data.records import Media\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"read_image(Media.from_file({str(tmp_path / 'flat.png')!r}))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert 1024 * int(output) < 1.1 * 7 * MAX_PIXELS  # four bytes a pixel in Pillow, three in the result


@pytest.mark.parametrize("orientation", [0, 9, 300])
def test_invalid_exif_orientations_are_ignored(orientation):
    np.testing.assert_array_equal(read_both(oriented(noise(3, 5), "PNG", orientation)), noise(3, 5))


def test_damaged_exif_blocks_are_ignored():
    media = encoded(Image.fromarray(noise(3, 5)), "PNG", exif=b"Exif\0\0MM\0*" + b"\xff" * 40)
    np.testing.assert_array_equal(read_both(media), noise(3, 5))


def png(width, height):
    """A PNG whose header promises that size, with no more than a byte behind it."""

    def chunk(name, content):
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    return Media(where="a.png", content=b"\x89PNG\r\n\x1a\n" + content)


@pytest.mark.parametrize(
    ("media", "reason"),
    [
        (png(0, 5), "pixels|no complete header"),
        (png(MAX_PIXELS // 4 + 1, 4), "pixels"),
        (png(60_000, 60_000), "DecompressionBomb"),
        (Media(where="empty"), "no complete header of JPEG, PNG"),
        (
            Media(where="words", content=b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
            "no complete header of JPEG, PNG",
        ),
        (Media.from_file("/nowhere/a.png"), "No such file"),
    ],
    ids=["no pixels", "too many", "a bomb", "empty", "a program", "missing"],
)
@pytest.mark.parametrize("reader", [read_image, image_size])
def test_invalid_headers_are_refused_by_both_readers(media, reason, reader):
    with pytest.raises(BadSampleError, match=reason) as error:
        reader(media)
    assert error.value.where == media.where


@functools.cache
def files():
    photo = Image.fromarray(np.asarray(Image.fromarray(noise(40, 30)).resize((300, 200))))
    return {form: encoded(photo, form).content for form in (*LOSSLESS, "JPEG", "WEBP", "GIF", "JPEG2000")}


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "JPEG", "WEBP"])
def test_truncated_files_are_refused(form):
    content = files()[form]
    with pytest.raises(BadSampleError):
        read_image(Media(where="half", content=content[: len(content) // 2]))


def is_accepted(content):
    """Whether an image can be read, with header and pixels of one size; otherwise BadSampleError is raised."""
    media = Media(where="fuzzed", content=content)
    accepted = False
    try:
        pixels = read_image(media)
    except BadSampleError as error:
        assert error.where == "fuzzed"
    else:
        accepted = True
        assert image_size(media) == pixels.shape[:2]
    try:
        height, width = image_size(media)
    except BadSampleError:
        with pytest.raises(BadSampleError):
            read_image(media)
    else:
        assert 0 < height * width <= MAX_PIXELS
    return accepted


def test_damaged_files_give_an_image_or_bad_sample_error():
    accepted = []

    @given(data=st.data())
    @settings(max_examples=120, deadline=None)
    def check(data):
        accepted.append(is_accepted(damaged(data, files()[data.draw(st.sampled_from(sorted(files())))])))

    check()
    assert 0 < sum(accepted) < len(accepted)


@given(st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff", b"GIF89a", b"BM", b"II*\0", b"P6 3 3 255 "]))
@settings(max_examples=80, deadline=None)
def test_arbitrary_bytes_give_an_image_or_bad_sample_error(content, start):
    is_accepted(start + content)


def test_saved_pixels_are_read_back(tmp_path):
    save_image(tmp_path / "a.png", to_unit_range(noise(5, 7)))
    np.testing.assert_array_equal(read_image(Media.from_file(tmp_path / "a.png")), noise(5, 7))
