"""Writing of small video files, for data sets that are drawn (`data.datasets.moving_shapes`)."""

import os
import pathlib

import numpy as np
from jaxtyping import UInt8

from data.errors import DataError
from data.extras import missing_extra

try:
    import av
    import av.error
except ImportError as error:
    raise missing_extra("writing video", "video", error) from error


def write_clip(path: str | os.PathLike[str], frames: UInt8[np.ndarray, "frames h w 3"], rate: int) -> None:
    """Writes frames as H.264, such that no process reads an incomplete file; both sides must be even.

    Args:
        path: The file, `.mp4` or `.mkv`; its folder is created.
        frames: The frames.
        rate: Frames per second.

    Raises:
        DataError: The file cannot be written.
    """
    target = pathlib.Path(path)
    part = target.with_name(f".{target.name}.part{target.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with av.open(os.fspath(part), "w") as container:
            stream = container.add_stream("libx264", rate=rate)
            stream.height, stream.width = frames.shape[1:3]
            stream.pix_fmt = "yuv420p"
            stream.options = {"crf": "18", "threads": "1"}
            for pixels in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
            container.mux(stream.encode(None))
        part.replace(target)
    except (OSError, av.error.FFmpegError) as error:
        raise DataError(f"{target} cannot be written ({error}); give a folder that can, and even sides") from error
