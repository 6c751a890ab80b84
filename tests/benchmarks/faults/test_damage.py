"""Damage that the benchmark does: every torn checkpoint is found out, every damaged image is refused when decoded."""

import random

import pytest

from benchmarks.faults.damage import HALF_WRITTEN, damage_image, tear_checkpoint
from benchmarks.faults.training_run import IMAGES, RunFolder
from data.errors import BadSampleError
from data.media.images import image_size, read_image
from data.records import Media
from mmjax.training.checkpoints.discovery import saved_steps
from mmjax.training.checkpoints.file_checksums import find_damage, write_file_list


def test_every_torn_checkpoint_is_found_out(tmp_path):
    done = set()
    for seed in range(60):
        checkpoint = tmp_path / str(seed) / "12"
        for name, size in (("parameters/a", 40), ("optimizer/d/b", 7), ("host/data.json", 1)):
            file = checkpoint / name
            file.parent.mkdir(parents=True)
            file.write_bytes(bytes(range(size)))
        write_file_list(checkpoint)
        assert find_damage(checkpoint) is None
        damage = tear_checkpoint(checkpoint, random.Random(seed)).partition(":")[0]
        done.add(damage)
        assert (damage == HALF_WRITTEN) == (not saved_steps(checkpoint.parent))
        assert damage == HALF_WRITTEN or find_damage(checkpoint)
    assert done == {"a file truncated", "a byte flipped", "a file removed", HALF_WRITTEN}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("run") / "files", tmp_path_factory.mktemp("programs"))
    folder.write(2)
    return folder.images


def test_a_damaged_image_is_refused_when_it_is_decoded_and_not_before(images):
    for number in range(40):
        path = images / f"{number}.png"
        media = Media.from_file(path)
        size = image_size(media)
        _ = read_image(media)
        damage_image(path, random.Random(number))
        assert image_size(media) == size
        with pytest.raises(BadSampleError):
            read_image(media)
    assert len(list(images.iterdir())) >= IMAGES
