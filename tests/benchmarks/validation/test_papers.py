"""Figures of papers beside the ranges of what is simulated."""

import pytest

from benchmarks.validation.papers import PaperFigure, Span, qwen3_vl_8b


def figure(published: Span, share: bool = False) -> PaperFigure:
    return PaperFigure(name="a model", published=published, simulated=Span(2.0, 2.0), range=Span(1.5, 2.5), share=share)


@pytest.mark.parametrize(
    ("published", "within"),
    [(Span(1.0, 1.4), False), (Span(1.0, 1.6), True), (Span(2.2, 2.2), True), (Span(2.6, 3.0), False)],
)
def test_a_published_figure_meets_its_row_if_it_may_lie_in_the_range(published, within):
    assert figure(published).row()["met"] is within


def test_a_row_says_seconds_or_percentages():
    assert (
        figure(Span(1.0, 1.6)).row()["figures"]
        == "1.00 s to 1.60 s published, 2.00 s simulated, range 1.50 s to 2.50 s"
    )
    assert (
        Span(0.3, 0.4).in_words(share=True) == "30.0% to 40.0%" and Span(0.416, 0.416).in_words(share=True) == "41.6%"
    )


def test_fully_sharded_qwen3_vl_8b_is_within_its_range_of_the_bands():
    figures = list(qwen3_vl_8b())
    assert len(figures) == 2
    for each in figures:
        assert each.row()["met"] and each.range.least < each.simulated.least < each.simulated.most < each.range.most
