"""The GPUs that are described: which there are, and what a dry run says without them."""

import pytest

from configs.clusters import CLUSTERS
from configs.common.errors import UserError
from mmjax.training.dry_run.targets import FOLDER, TARGETS, check_target, described_devices, missing_plugin


def test_every_target_is_the_device_of_the_cluster_of_its_name():
    assert TARGETS == ("a100", "b200", "h100", "h200")
    for target in TARGETS:
        text = (FOLDER / f"{target}.txtpb").read_text()
        (kind,) = (line.split('"')[1] for line in text.splitlines() if line.startswith("device_description_str"))
        assert CLUSTERS[target].has_device_kind(kind)


def test_an_unknown_target_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"'h10' is not described; choose from a100, b200, h100, h200; did you mean"):
        check_target("h10")


@pytest.mark.skipif(not missing_plugin(), reason="the plugin is installed")
def test_without_the_plugin_the_error_says_what_to_install():
    with pytest.raises(UserError, match=r"^JAX has no CUDA plugin here: pip install -e '\.\[aot\]' \(5\.5 GB\)$"):
        described_devices("h100", 8, 8)
