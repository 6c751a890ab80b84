from mmjax.launching.restart_limit import RestartLimit


def test_so_many_restarts_are_allowed_within_any_window():
    limit = RestartLimit(2, window=10.0)
    taken = [(now, limit.take(now), limit.used) for now in (0.0, 3.0, 9.9, 10.0, 12.0, 13.0)]
    assert taken == [(0, True, 1), (3, True, 2), (9.9, False, 2), (10, True, 2), (12, False, 2), (13, True, 2)]


def test_none_are_allowed_by_default():
    assert not RestartLimit(0, window=10.0).take(0.0)
