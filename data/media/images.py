"""Pictures of any file to RGB pixels, and their sizes from the header alone."""

import contextlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image, UnidentifiedImageError

from data.errors import BadSampleError
from data.records import Media

# The formats that data sets hold. Pillow's others stay shut: some are vectors drawn by another program.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")
# Above it Pillow speaks of a decompression bomb: 256 MiB of RGB pixels.
MAX_PIXELS = 89_478_485

# What undoes each orientation that EXIF knows; 1 is upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LYING = (5, 6, 7, 8)  # height and width change places


def read_image(media: Media) -> UInt8[np.ndarray, "h w 3"]:
    """Decodes a picture as a person sees it: turned upright by its EXIF orientation, laid over white where transparent.

    Of an animation, the first frame. Greys of 16 bits keep their upper 8.

    Raises:
        BadSampleError: Missing, cut, not of `FORMATS`, without a pixel, of more than `MOST_PIXELS`, or of numbers
            without a known range.
    """
    with _opened(media) as image:
        turn = _UPRIGHT.get(_orientation(image))
        rgb = _to_rgb(image)
        return np.asarray(rgb if turn is None else rgb.transpose(turn))


def image_size(media: Media) -> tuple[int, int]:
    """The (height, width) that `read_picture` gives, from the header.

    Raises:
        BadSampleError: The header alone shows that `read_picture` would refuse it.
    """
    with _opened(media) as image:
        width, height = image.size
        return (width, height) if _orientation(image) in _LYING else (height, width)


@contextlib.contextmanager
def _opened(media: Media) -> Iterator[Image.Image]:
    """The picture with its header read and its pixels not; whatever fails inside becomes BadSampleError."""
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
        raise BadSampleError(media.where, f"no whole header of {', '.join(IMAGE_FORMATS)}") from error
    # Pillow's decoders let nearly anything through for a damaged file: OSError, SyntaxError, ValueError, struct.error.
    except Exception as error:
        raise BadSampleError(media.where, f"{type(error).__name__}: {error}") from error


def _orientation(image: Image.Image) -> int:
    """1 to 8, as the header says it; 1 where it says nothing that makes sense.

    Not `Image.getexif`: for a PNG it decodes the pixels to look behind them. A TIFF is turned by Pillow itself, in its
    size too.
    """
    if image.format == "TIFF" or "exif" not in image.info:
        return 1
    exif = Image.Exif()
    try:
        exif.load(image.info["exif"])
        orientation = exif.get(ExifTags.Base.Orientation, 1)
    except Exception:  # A damaged block: viewers show such a picture as it is stored.
        return 1
    return orientation if orientation in _UPRIGHT else 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips at 255.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    paper = Image.new("RGBA", layer.size, "white")
    paper.alpha_composite(layer)
    return paper.convert("RGB")
