"""Image files of any common format: decoding to RGB pixels, and sizes from headers alone."""

import contextlib
import io
import os
from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from data.errors import BadSampleError
from data.media.patches import to_uint8
from data.records import Media

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")
"""Pillow's names of the formats that are read. Others stay disabled: some run an external program."""

MAX_PIXELS = 89_478_485
"""Pixels above which Pillow warns of a decompression bomb: 256 MiB of RGB."""

# The transformation that undoes each EXIF orientation; 1 is upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SWAPS_SIDES = (5, 6, 7, 8)  # orientations in which height and width are exchanged


def read_image(media: Media) -> UInt8[np.ndarray, "h w 3"]:
    """Decodes an image as a viewer shows it: upright by its EXIF orientation, on white where it is transparent.

    Of an animation, the first frame. Of 16-bit grey levels, the upper 8 bits.

    Raises:
        BadSampleError: The file is missing, truncated, not of `IMAGE_FORMATS`, without pixels, of more than
            `MAX_PIXELS`, or has values of unknown range.
    """
    with _open_image(media) as image:
        transpose = _UPRIGHT.get(_orientation(image))
        rgb = _to_rgb(image)
        return np.asarray(rgb if transpose is None else rgb.transpose(transpose))


def image_size(media: Media) -> tuple[int, int]:
    """The (height, width) of what `read_image` returns, from the header.

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
        ValueError: The array has another shape or dtype.
    """
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or image.shape[2:] not in ((), (3,)) or not image.size:
            raise ValueError(f"an image is uint8[height, width, 3] or [height, width], not {image.dtype}{image.shape}")
        image = Image.fromarray(image)
    upright = ImageOps.exif_transpose(image)
    file = io.BytesIO()
    # PPM is the pixels behind a short header; PNG has the other modes, which PPM lacks.
    upright.save(file, "PPM" if upright.mode in ("RGB", "L") else "PNG")
    return file.getvalue()


def save_image(path: str | os.PathLike[str], image: np.ndarray) -> None:
    """Writes float pixels [height, width, 3] in [-1, 1] to a file; the suffix selects the format."""
    Image.fromarray(to_uint8(image)).save(path)


@contextlib.contextmanager
def _open_image(media: Media) -> Iterator[Image.Image]:
    """Opens an image whose header is valid, without decoding; every error inside becomes BadSampleError."""
    try:
        with media.open() as stream, Image.open(stream, formats=IMAGE_FORMATS) as image:
            width, height = image.size
            if width < 1 or height < 1:
                raise BadSampleError(media.where, f"{height}x{width} pixels")
            if width * height > MAX_PIXELS:
                raise BadSampleError(media.where, f"{height}x{width} pixels are more than {MAX_PIXELS}")
            if image.mode in ("I", "F"):
                raise BadSampleError(media.where, f"pixels of mode {image.mode} have no known range")
            yield image
    except BadSampleError:
        raise
    except UnidentifiedImageError as error:
        raise BadSampleError(media.where, f"no complete header of {', '.join(IMAGE_FORMATS)}") from error
    # Pillow's decoders raise nearly anything for a damaged file: OSError, SyntaxError, ValueError, struct.error.
    except Exception as error:
        raise BadSampleError(media.where, f"{type(error).__name__}: {error}") from error


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; 1 where the header has none or an invalid one.

    `Image.getexif` is not used because it decodes the pixels of a PNG to read what follows them. Pillow itself applies
    the orientation of a TIFF, to its size too.
    """
    if image.format == "TIFF" or "exif" not in image.info:
        return 1
    exif = Image.Exif()
    try:
        exif.load(image.info["exif"])
        orientation = exif.get(ExifTags.Base.Orientation, 1)
    except Exception:  # viewers show an image with a damaged EXIF block as it is stored
        return 1
    return orientation if orientation in _UPRIGHT else 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips at 255.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    background = Image.new("RGBA", layer.size, "white")
    background.alpha_composite(layer)
    return background.convert("RGB")
