"""What the benchmark changes of the held-out clips: other clips, clips played backwards, still clips."""

import numpy as np

from benchmarks.moving_shapes import answers_of, commonest_answer_accuracy, sources
from data.datasets.moving_shapes import draw_clip, moving_shapes, write_moving_shapes
from data.media.clips.video import read_frames, read_header
from data.records import Media

CLIPS = 4


def frames_of(path):
    media = Media.from_file(path)
    header = read_header(media)
    times = [(number + 0.5) / header.rate for number in range(header.frames)]
    return np.stack([pixels.astype(int) for pixels in read_frames(media, header, times)])


def paths_of(folder):
    ((_, source),) = moving_shapes("test", str(folder)).test
    return [source[number].turns[0].parts[0].media.path for number in range(len(source))]


def difference(some, others):
    return float(np.abs(some - others).mean())


def test_answers_stay_and_clips_change(tmp_path):
    folder = tmp_path / "shapes"
    list(write_moving_shapes(folder, {"train": 9, "test": CLIPS}))
    (tmp_path / "scratch").mkdir()
    same, other, backwards, still = (source_folder for _, source_folder in sources(folder, tmp_path / "scratch"))
    assert same == folder
    expected = [draw_clip("test", number).direction for number in range(CLIPS)]
    assert [answers_of(changed, "test") for changed in (same, other, backwards, still)] == [expected] * 4
    names = [[path.rpartition("/")[2] for path in paths_of(changed)] for changed in (same, other)]
    assert sorted(names[0]) == sorted(names[1]) and all(map(str.__ne__, *names))
    for number in range(CLIPS):
        frames, reversed_frames, first = (frames_of(paths_of(changed)[number]) for changed in (same, backwards, still))
        assert difference(reversed_frames, frames[::-1]) < 0.5 * difference(reversed_frames, frames)
        assert difference(first, np.broadcast_to(frames[:1], frames.shape)) < 0.5 * difference(first, frames)
    answers = answers_of(folder, "train")
    shares = {expected.count(answer) / CLIPS for answer in set(answers) if answers.count(answer) >= 9 / 4}
    assert commonest_answer_accuracy(folder) in shares
