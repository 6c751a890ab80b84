"""Orders that are said to fit are dealt without an error, and orders that are said not to fit are not."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import ModelConfig
from data.packing.phases.item_tables import PhaseCapacityError, plan_table
from data.packing.phases.limited_phases import LimitedPhase, limited_phases
from data.packing.phases.phase_rows import PhaseRows
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat
from sharding.balancing.dealing import DealingError, deal_items
from tests.data.packing.test_planned_phases import PLAN

SLOTS = 16
"""Token slots of a row of the global batch."""


@st.composite
def batches(draw: st.DrawFn) -> tuple:
    """Samples of every row by the slots of their images, a phase, microbatches, and an order of the rows."""
    microbatches = draw(st.integers(1, 3))
    per_microbatch = draw(st.integers(1, 4))
    images = st.lists(st.integers(1, SLOTS), max_size=3)
    rows = [draw(st.lists(images, max_size=2)) for _ in range(microbatches * per_microbatch)]
    phase_rows = draw(st.integers(1, 4))
    capacities = sorted(draw(st.sets(st.integers(1, 3 * SLOTS), min_size=1, max_size=3)))
    order = draw(st.permutations(range(len(rows))))
    return rows, phase_rows, tuple(capacities), microbatches, order, draw(st.booleans())


@given(batches())
@settings(max_examples=300, deadline=None)
def test_what_fits_is_dealt_and_the_rest_fits_only_as_whole_rows(batch):
    rows, phase_rows, capacities, microbatches, order, is_generator = batch
    per_slot = 1 if is_generator else 4
    sizes = {
        10 * number + place: SampleSizes(
            tokens=1, items={"patches": tuple(per_slot * length for length in lengths)}, images=len(lengths)
        )
        for number, row in enumerate(rows)
        for place, lengths in enumerate(row)
    }
    ids = [[10 * number + place for place in range(len(row))] for number, row in enumerate(rows)]
    phase = PhaseRows(
        module="module",
        unit="unit",
        is_generator=is_generator,
        rows=phase_rows,
        slots=SLOTS,
        capacities=capacities,
        values="patches",
        values_per_slot=per_slot,
    )
    limited = LimitedPhase(None if is_generator else "patches", phase_rows, per_slot * capacities[-1])
    microbatch_of_row = np.empty(len(rows), int)
    microbatch_of_row[order] = np.arange(len(rows)) // (len(rows) // microbatches)
    fits = limited.fits([[sizes[each] for each in row] for row in ids], microbatch_of_row, microbatches)
    try:
        plan_table([ids[number] for number in order], sizes, phase, microbatches)
    except PhaseCapacityError:
        assert not fits
    else:
        assert fits or phase.largest >= phase.sufficient(len(rows) // microbatches)


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 8), st.integers(1, 1000))
@settings(max_examples=100, deadline=None)
def test_the_sufficient_bound_agrees_with_dealing(lengths, rows, capacity):
    row = [SampleSizes(tokens=1, items={"patches": tuple(lengths)})]
    try:
        deal_items(np.array(lengths, np.int64), rows, (capacity,))
        is_dealt = True
    except DealingError:
        is_dealt = False
    assert LimitedPhase("patches", rows, capacity).fits([row], np.zeros(1, int), 1) == is_dealt


def test_only_units_with_capacities_are_limited():
    vision, generator, backbone = PLAN.units
    sample_format = SampleFormat.for_model(ModelConfig(), {"patches": 128})
    assert limited_phases(PLAN, sample_format) == (LimitedPhase(None, 6, 2),)
    both = dataclasses.replace(vision, capacities=(64, 128))
    plan = dataclasses.replace(PLAN, units=(both, generator, backbone))
    assert limited_phases(plan, sample_format) == (LimitedPhase("patches", 3, 128), LimitedPhase(None, 6, 2))
