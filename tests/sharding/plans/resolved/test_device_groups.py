"""Groups of devices where stages have many replicas."""

import numpy as np

from sharding.plans.resolved.device_groups import group_devices


def test_hundreds_of_replicas_are_grouped():
    wide, few = np.arange(300)[:, None], np.arange(300).reshape(150, 2)
    groups = group_devices({("many", 0): wide, ("few", 0): few})
    assert groups.device_count == 300 and (groups.sizes == 1).all()
    assert groups.groups_of["many", 0].shape == (300, 1) and groups.groups_of["few", 0].shape == (150, 2)


def test_devices_of_different_replicas_of_any_stage_are_different_groups():
    wide, tall = np.arange(4).reshape(2, 2), np.arange(4).reshape(4, 1)
    assert len(group_devices({("wide", 0): wide}).sizes) == 2
    assert len(group_devices({("wide", 0): wide, ("tall", 0): tall}).sizes) == 4
