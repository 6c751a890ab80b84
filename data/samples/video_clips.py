"""Video clips as items of a vision encoder: frames are chosen and sized from the header, and decoded on loading.

`MediaParts` expands the clips of a record with these functions.
"""

from collections.abc import Callable

import numpy as np

from data.errors import DataError
from data.media.clips.video_sampling import VideoHeader, VideoSampling
from data.media.tilings.tiling import DynamicTiling, ImageTiling, NativeResolution
from data.records import Media
from data.samples.decoded_once import DecodedOnce
from data.samples.encoder_format import EncoderInputs, MediaItem
from data.samples.image_format import PatchFormat, frame_inputs


def clip_items(media: Media, sampling: VideoSampling, patch_format: PatchFormat) -> list[MediaItem]:
    """The items of a clip, each of `temporal_patch` frames, in order; the last one repeats its last frame.

    The vision encoder attends within an item alone, so items are packed and balanced like images.

    Args:
        media: The file.
        sampling: Which frames are read.
        patch_format: Format of the encoder's inputs.

    Raises:
        BadSampleError: The file cannot be read.
        DataError: `VideoSampling` leaves no room for a frame.
    """
    from data.media.clips.video import read_frames, read_header  # needs the extra `video`

    header = read_header(media)
    numbers, (height, width), tiling = plan_frames(header, sampling, patch_format)
    per_item, cell_size = patch_format.temporal_patch, patch_format.cell_size

    def decode() -> list[np.ndarray]:
        middles = [(int(number) + 0.5) / header.rate for number in numbers]
        return [tiling.cut_images(frame, cell_size)[0] for frame in read_frames(media, header, middles)]

    firsts = range(0, len(numbers), per_item)
    frames = DecodedOnce(decode, len(firsts))

    def loader(first: int) -> Callable[[], EncoderInputs]:
        return lambda: frame_inputs(frames()[first : first + per_item], patch_format)

    length = patch_format.prefix_length + height * width // patch_format.patch**2
    times = [int(number) / header.rate for number in numbers]
    return [
        MediaItem(
            patch_format.field,
            length,
            loader(first),
            media.where,
            times=tuple(times[first : first + per_item]),
            group=group,
            grid=(height // cell_size, width // cell_size),
        )
        for group, first in enumerate(firsts)
    ]


def plan_frames(
    header: VideoHeader, sampling: VideoSampling, patch_format: PatchFormat
) -> tuple[np.ndarray, tuple[int, int], ImageTiling]:
    """Chooses the frames of a clip that are read, and their size.

    Returns:
        int64[n] numbers of frames from 0, (height, width), and a tiling that makes one image of a frame.

    Raises:
        DataError: There is no room for a frame.
    """
    budget = min(sampling.max_patches or patch_format.max_length, patch_format.max_length)
    smallest = patch_format.prefix_length + max(
        patch_format.values_per_token, (sampling.side // patch_format.patch) ** 2
    )
    if budget < smallest:
        raise DataError(
            f"a clip has {budget} patches at most, and a frame has {smallest} at least; raise "
            "VideoSampling.max_patches and the patches of a row, or lower VideoSampling.side"
        )
    numbers = sampling.frame_numbers(header, budget // smallest * patch_format.temporal_patch)
    items = -(-len(numbers) // patch_format.temporal_patch)
    tiling = (
        DynamicTiling(sampling.side, max_tiles=1, thumbnail=False)
        if sampling.side
        else NativeResolution(patch_format.token_count(budget // items))
    )
    (size,) = tiling.image_sizes(header.height, header.width, patch_format.cell_size)
    return numbers, size, tiling
