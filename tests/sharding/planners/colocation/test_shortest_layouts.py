"""The shortest layouts of a backbone are found without the estimates of all."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.planners.colocation.backbone_layouts import BackboneLayout, ShortestLayouts


def _layout(tp: int, chunks: int, alone: float) -> BackboneLayout:
    return BackboneLayout(
        tp=tp,
        pp=2,
        chunks=chunks,
        dp=1,
        rows=1,
        microbatches=4,
        layers=(1,) * (2 * chunks),
        recompute="none",
        work=alone,
        alone=alone,
        peak_bytes=0.0,
    )


_SECONDS = st.integers(1000, 1100).map(lambda milliseconds: milliseconds / 1000)
_ESTIMATED = st.tuples(st.builds(_layout, st.sampled_from((1, 2, 4, 8)), st.integers(1, 4), _SECONDS), _SECONDS)


@given(st.lists(_ESTIMATED, min_size=1, max_size=40), st.integers(1, 5))
@settings(deadline=None)
def test_layouts_whose_backbone_alone_takes_longer_change_nothing(estimated, count):
    layouts = [(max(layout.alone, seconds), number, layout) for number, (layout, seconds) in enumerate(estimated)]
    every, first = ShortestLayouts(count), ShortestLayouts(count)
    for entry in layouts:
        every.add(*entry)
    for entry in sorted(layouts, key=lambda entry: entry[2].alone):
        if first.are_shorter_than(entry[2].alone):
            break
        first.add(*entry)
    assert first.shortest() == every.shortest()


def test_of_layouts_that_differ_in_chunks_the_one_with_the_fewest_among_the_nearly_shortest_is_kept():
    found = ShortestLayouts(3)
    layouts = [_layout(1, 4, 1.0), _layout(1, 2, 1.005), _layout(1, 1, 1.02), _layout(2, 4, 1.1)]
    for number, layout in enumerate(layouts):
        found.add(layout.alone, number, layout)
    assert found.shortest() == [(1.005, layouts[1]), (1.1, layouts[3])]
