"""Image files of any common format: decoding to RGB pixels, and sizes from headers alone.

Sizes are read when a sample is planned, pixels when it is loaded.
"""

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image, ImageCms, ImageOps, PngImagePlugin, UnidentifiedImageError

from data.errors import BadSampleError
from data.media.decoding import decoding
from data.media.patches import to_uint8
from data.records import Media

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")
"""Pillow's names of the formats that are read. Others stay disabled: some run an external program."""

MAX_PIXELS = 89_478_485
"""Pixels above which Pillow warns of a decompression bomb: 256 MiB of RGB."""

# Pillow refuses a PNG with more than 1 MiB of inflated text or colour profile, of which only an orientation is used.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = 64 << 20

_UNKNOWN_RANGE = ("I", "F")  # modes
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B")  # that PNG holds as they are
_BAND_PIXELS = 2**22  # converted at once

# The stored image as a view of the upright one, for each EXIF orientation but 1, which is upright.
_STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: np.rot90,
    7: lambda upright: upright.swapaxes(0, 1)[::-1, ::-1],
    8: lambda upright: np.rot90(upright, -1),
}
_SWAPS_SIDES = (5, 6, 7, 8)  # orientations in which height and width are exchanged
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')  # as Pillow looks for it


def read_image(media: Media) -> UInt8[np.ndarray, "h w 3"]:
    """Decodes an image as a viewer shows it: upright by its EXIF or XMP orientation, on white where it is transparent.

    Of an animation the first frame is decoded, of 16-bit grey levels the upper 8 bits.

    Raises:
        BadSampleError: The file is missing, truncated, not of `IMAGE_FORMATS`, without pixels, of more than
            `MAX_PIXELS`, or has values of unknown range.
    """
    with _open_image(media) as image:
        orientation = 1 if image.format == "TIFF" else _orientation(image)  # Pillow applies a TIFF's on loading
        image.load()
        width, height = image.size
        upright = np.empty((width, height, 3) if orientation in _SWAPS_SIDES else (height, width, 3), np.uint8)
        stored = _STORED.get(orientation, lambda upright: upright)(upright)
        # By bands, because Pillow's pixels and copies have four bytes each: 1.2 GB for the largest images.
        rows = max(1, _BAND_PIXELS // width)
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            stored[top:bottom] = np.asarray(_to_rgb(image.crop((0, top, width, bottom)) if rows < height else image))
        return upright


def image_size(media: Media) -> tuple[int, int]:
    """The (height, width) of the image that `read_image` returns, from the header.

    Raises:
        BadSampleError: The header shows that `read_image` would raise for the file.
    """
    with _open_image(media) as image:
        width, height = image.size
        return (width, height) if _orientation(image) in _SWAPS_SIDES else (height, width)


def encode_image(image: np.ndarray | Image.Image) -> bytes:
    """A decoded image as the bytes of a file with the same pixels, upright.

    Args:
        image: uint8[height, width, 3], uint8[height, width], or an image of Pillow.

    Raises:
        ValueError: The array has another shape or dtype, or the image a mode whose range is unknown.
    """
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or image.shape[2:] not in ((), (3,)) or not image.size:
            raise ValueError(f"an image is uint8[height, width, 3] or [height, width], not {image.dtype}{image.shape}")
        image = Image.fromarray(image)
    if image.mode in _UNKNOWN_RANGE:
        raise ValueError(f"pixels of mode {image.mode} have no known range")
    upright = ImageOps.exif_transpose(image)
    if upright.mode not in _PNG_MODES:
        upright = _to_rgb(upright)
    file = io.BytesIO()
    # PPM is the pixels behind a short header; PNG has the other modes, which PPM lacks.
    upright.save(file, "PPM" if upright.mode in ("RGB", "L") else "PNG")
    return file.getvalue()


def save_image(path: str | os.PathLike[str], image: np.ndarray) -> None:
    """Writes float pixels [height, width, 3] in [-1, 1] to a file; the suffix selects the format."""
    Image.fromarray(to_uint8(image)).save(path)


@contextlib.contextmanager
def _open_image(media: Media) -> Iterator[Image.Image]:
    """Opens an image whose header is valid, without decoding; errors inside are raised as by `decoding`."""
    with decoding(media, _explain) as stream, Image.open(stream, formats=IMAGE_FORMATS) as image:
        width, height = image.size
        if width < 1 or height < 1:
            raise BadSampleError(media.where, f"{height}x{width} pixels")
        if width * height > MAX_PIXELS:
            raise BadSampleError(media.where, f"{height}x{width} pixels are more than {MAX_PIXELS}")
        if image.mode in _UNKNOWN_RANGE:
            raise BadSampleError(media.where, f"pixels of mode {image.mode} have no known range")
        yield image


def _explain(error: Exception) -> str:
    return f"no complete header of {', '.join(IMAGE_FORMATS)}" if isinstance(error, UnidentifiedImageError) else ""


def _orientation(image: Image.Image) -> int:
    """Orientation by which the header's size is to be turned, 1 to 8; 1 where there is none or an invalid one.

    EXIF's, or else XMP's, as in `Image.getexif`, which is not used because it decodes the pixels of a PNG to read the
    blocks that follow them. Of a TIFF, Pillow applies EXIF's to the size already.
    """
    if image.format == "TIFF":
        orientation = 1 if ExifTags.Base.Orientation in getattr(image, "tag_v2", {}) else None
    else:
        orientation = _exif_orientation(image)
    xmp = image.info.get("xmp")
    if orientation is None and isinstance(xmp, bytes) and (match := _XMP_ORIENTATION.search(xmp)):
        orientation = int(match[1])
    return orientation if orientation in _STORED else 1


def _exif_orientation(image: Image.Image) -> int | None:
    """Orientation of the EXIF block, also of one that ImageMagick wrote as text; None without one."""
    exif, text = Image.Exif(), image.info.get("Raw profile type exif")
    try:
        exif.load(bytes.fromhex("".join(text.split("\n")[3:])) if text else image.info.get("exif", b""))
        return exif.get(ExifTags.Base.Orientation)
    except MemoryError:
        raise
    except Exception:  # viewers show an image with a damaged EXIF block as it is stored
        return None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips at 255.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "RGB" and not image.has_transparency_data:
        return image  # `convert` would copy it
    if image.mode == "LAB":
        lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(image, lab, rgb, outputMode="RGB") or image
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    background = Image.new("RGBA", layer.size, "white")
    background.alpha_composite(layer)
    return background.convert("RGB")
