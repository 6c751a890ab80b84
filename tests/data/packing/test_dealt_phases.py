"""Dealing the items of a batch over rows of a phase: every item once, with its own values, at a place that holds it."""

import dataclasses
import json

import numpy as np
import pytest

from configs.architectures import ModelConfig
from data.errors import DataError
from data.packing.dealt_phases import DealtPhases, plan_phase_rows
from data.packing.phases.item_tables import ITEM_FIELDS, BatchItems, deal_phase, first_slots, microbatch_items
from data.packing.phases.phase_rows import PhaseRows
from data.packing.phases.table_check import ItemTableError
from sharding.balancing.dealing import deal_items
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from tests.data.packing.planned_rows import vision_rows
from tests.tiny_model import AUDIO, BACKBONE, GENERATOR, VISION, tiny_batch

MODEL = ModelConfig((VISION, AUDIO), BACKBONE, (GENERATOR,))
BATCH = tiny_batch(MODEL)
MICROBATCHES = 2


def dealt_phases(
    rows: dict[str, int],
    capacities: dict[str, tuple[int, ...]],
    dp: int = 1,
    quadratic_cost_weights: tuple[tuple[str, float], ...] = (),
) -> DealtPhases:
    units = [
        UnitPlan(
            name,
            (name,),
            tuple(range(dp)),
            phase_rows=rows[name],
            capacities=capacities.get(name, ()),
            parallelism=Parallelism(dp=dp),
        )
        for name in rows
    ]
    units.append(UnitPlan("backbone", ("backbone",), (dp,)))
    return plan_phase_rows(
        Plan(tuple(units), MICROBATCHES), MODEL, BATCH, quadratic_cost_weights=quadratic_cost_weights
    )


def items_of(phase: PhaseRows, arrays) -> list[tuple[int, tuple[bytes, ...]]]:
    """(microbatch, the bytes of all fields but the numbering) of every item, which lies in one piece."""
    fields = arrays[phase.module]
    items = []
    for row, segments in enumerate(fields["segments"]):
        for item in range(1, segments.max(initial=0) + 1):
            positions = np.flatnonzero(segments == item)
            assert len(positions) and (np.diff(positions) == 1).all()
            values = [
                array[row].reshape(len(segments), -1)[positions] for name, array in fields.items() if name != "segments"
            ]
            items.append((row * MICROBATCHES // len(fields["segments"]), tuple(array.tobytes() for array in values)))
    return sorted(items)


@pytest.mark.parametrize("module", ["vision", "audio"])
@pytest.mark.parametrize(("rows", "dp"), [(3, 3), (1, 1), (8, 4)])
def test_every_item_of_an_encoder_is_in_its_microbatch_once(module, rows, dp):
    phases = dealt_phases({module: rows}, {}, dp)
    phase = phases.phases[module]
    dealt = phases.deal(BATCH)
    assert items_of(phase, dealt) == items_of(phase, BATCH)
    for name, array in dealt[module].items():
        spec = phases.batch_spec(BATCH)[module][name]
        assert (array.shape, array.dtype) == (spec.shape, spec.dtype)
    assert dealt["backbone"] is BATCH["backbone"]
    assert phases.deal(dealt) == dealt  # only once
    assert phases.digest(dealt) and phases.digest(dealt) == phases.digest(phases.deal(BATCH))
    capacity = MICROBATCHES * rows * spec_length(phases, module)
    assert phases.counts({module: (7, 99), "backbone": (5, 96)}, dealt) == {module: (7, capacity), "backbone": (5, 96)}
    for others in (DealtPhases(), dealt_phases({module: 2}, {})):
        with pytest.raises(
            DataError, match=f"the {module} items of this batch are dealt over the rows of another plan"
        ):
            others.deal(dealt)


def spec_length(phases: DealtPhases, module: str) -> int:
    """Values of a row of a phase."""
    return phases.batch_spec(BATCH)[module]["patches" if module == "vision" else "frames"].shape[1]


def test_equal_shapes_of_another_plan_are_told_apart():
    dealt = dealt_phases({"vision": 4}, {}).deal(BATCH)
    assert dealt["vision"]["patches"].shape == BATCH["vision"]["patches"].shape
    with pytest.raises(DataError, match="dealt over the rows of another plan"):
        DealtPhases().deal(dealt)


def test_target_images_keep_their_weights_and_sample_ids():
    phases = dealt_phases({"generator": 6}, {"generator": (1,)}, 3)
    dealt = phases.deal(BATCH)["generator"]
    assert dealt["images"].shape[:2] == (12, 1)

    def weighted(fields):
        rows, images = np.nonzero(fields["weights"])
        return {
            int(fields["samples"][row, image]): (fields["weights"][row, image], fields["images"][row, image].tobytes())
            for row, image in zip(rows, images, strict=True)
        }

    assert weighted(dealt) == weighted(BATCH["generator"])


def test_the_table_leads_from_every_cell_of_the_batch_to_its_place_in_the_phase():
    phases = dealt_phases({"vision": 3}, {"vision": (12,)})
    phase, dealt = phases.phases["vision"], phases.deal(BATCH)
    before = BATCH["vision"]["patches"].reshape(MICROBATCHES, -1, 4 * VISION.patch_width)  # [m, slots, values]
    after = dealt["vision"]["patches"].reshape(MICROBATCHES, -1, 4 * VISION.patch_width)
    for number, items in enumerate(microbatch_items(dealt[phase.table_name]["items"], MICROBATCHES)):
        in_batch, in_phase = first_slots(items, phase, phase.largest)
        assert (items[:, -1] == 1).all() and len(set(in_phase.tolist())) == len(in_phase) > 4
        np.testing.assert_array_equal(after[number, in_phase], before[number, in_batch])


def test_items_that_do_not_fit_are_refused_with_what_would_hold_them():
    with pytest.raises(
        DataError,
        match=r"^microbatch 0 of unit vision: the 8 items of vision do not fit into 3 rows of 8 patches; raise .* "
        r"to at least 12 \(16 suffices for any batch\), or give it more rows$",
    ):
        dealt_phases({"vision": 3}, {"vision": (8,)}).deal(crowded(BATCH))
    with pytest.raises(
        DataError,
        match=r"an item of vision has 8 patches, and one of its rows holds 4; raise .* 16 \(16 suffices for .*\)$",
    ):
        dealt_phases({"vision": 3}, {"vision": (4,)}).deal(with_large_images(BATCH))
    with pytest.raises(PlanError, match="unit vision: the capacity 6 must be a multiple of 4, the patches of a"):
        dealt_phases({"vision": 3}, {"vision": (6, 8)})


def crowded(batch):
    """A batch all of whose rows are full of images."""
    segments = np.tile(np.repeat([1, 2], 4).astype(np.int32), (len(batch["vision"]["segments"]), 1))
    return {**batch, "vision": {**batch["vision"], "segments": segments}}


def with_large_images(batch):
    """A batch with one image in every row, which fills it."""
    return {**batch, "vision": {**batch["vision"], "segments": np.ones_like(batch["vision"]["segments"])}}


def test_any_batch_fits_without_a_capacity_in_the_plan():
    """Three images of two slots and one of three do not pack into rows of three; whole rows of the batch do."""
    phase = vision_rows(rows=2, slots=3, capacities=(6,))
    segments = np.array([[1, 1, 1], [1, 1, 2], [1, 2, 2], [1, 1, 0]], np.int32).repeat(4, axis=1)
    patches = np.arange(4 * 12, dtype=np.float32).reshape(4, 12, 1)
    arrays = {"vision": {"patches": patches, "segments": segments}}
    tight = dataclasses.replace(phase, capacities=(3,), rows=4)
    for dealt_phase in (phase, tight):
        dealt = DealtPhases({"vision": dealt_phase}).deal(arrays)["vision"]
        assert sorted(dealt["patches"][dealt["segments"] > 0].ravel()) == sorted(patches[segments > 0].ravel())


def table_with(changes: dict[tuple[int, str], int], keep: slice = slice(None), module: str = "vision"):
    """A batch dealt over three rows, whose table has other values at (item, column), or only some items."""
    phases = dealt_phases({"vision": 3, "generator": 3}, {})
    dealt = phases.deal(BATCH)
    name = phases.phases[module].table_name
    items = dealt[name]["items"].copy()
    for (item, column), value in changes.items():
        items[item, ITEM_FIELDS.index(column)] = value
    return phases, {**dealt, name: {**dealt[name], "items": items[keep]}}


@pytest.mark.parametrize(
    ("changes", "keep", "words"),
    [
        ({}, slice(1, None), "the table of vision loses or misplaces an item: row 0 of the phase has one at slot 0"),
        ({(3, "row"): 9}, slice(None), r"item 3 \(microbatch 0, row 9, .* is outside the 4 rows of 2 slots of a micro"),
        ({(0, "length"): 0}, slice(None), r"item 0 \(.*length 0\) is outside the 4 rows of 2 slots"),
        ({(2, "phase_row"): 3}, slice(None), r"item 2 \(.* is outside the phase's 3 rows of 4 slots"),
        ({(2, "phase_place"): -1}, slice(None), r"item 2 \(.* is outside the phase's 3 rows of 4 slots"),
        ({(0, "microbatch"): 2}, slice(None), r"item 0 \(.* is in none of 2 microbatches"),
        ({(0, "microbatch"): 1}, slice(None), r"item 1 \(.* follows one of a later microbatch"),
        ({(1, "row"): 0, (1, "place"): 0}, slice(None), "repeats slots of another in the rows of the batch"),
        ({(1, "phase_row"): 0, (1, "phase_place"): 0}, slice(None), "lies on another in the rows of the phase"),
        (
            {(0, "length"): 2, (1, "row"): 1, (1, "place"): 1, (3, "phase_place"): 3},
            slice(None),
            r"item 0 \(.* is not one item in the rows of the phase",
        ),
        ({(2, "row"): 1, (2, "place"): 1}, slice(None), "loses an item: token 1 of row 1 takes the output of slot 0"),
    ],
)
def test_a_table_that_loses_repeats_or_misplaces_an_item_is_refused(changes, keep, words):
    phases, batch = table_with(changes, keep)
    with pytest.raises(ItemTableError, match=words):
        phases.deal(batch)


def test_a_table_without_one_of_the_images_to_generate_is_refused():
    phases, batch = table_with({}, slice(1, None), "generator")
    with pytest.raises(ItemTableError, match="the table of generator loses or misplaces an item: row"):
        phases.deal(batch)
    phases, batch = table_with({})
    batch["vision items"] = {**batch["vision items"], "items": batch["vision items"]["items"].astype(float)}
    with pytest.raises(
        ItemTableError, match=r"the table of vision is float64\[13, 6\]; it has a whole number for each"
    ):
        phases.deal(batch)


def test_each_microbatch_gets_the_smallest_capacity_that_holds_its_items_and_one_without_items_none():
    phases = dealt_phases({"vision": 2, "generator": 1}, {"vision": (4, 8, 16), "generator": (2, 8)})
    batch = tiny_batch(MODEL)
    batch["vision"]["segments"][[0, 1, 2]] = 0  # two images are left in the first microbatch, six in the second
    batch["generator"]["weights"][:4] = 0
    dealt = phases.deal(batch)
    assert phases.capacities(dealt) == {"vision": (0, 2), "generator": (None, 1)}
    real = {"vision": (32, 64), "generator": (5, 16)}
    assert phases.counts(real, dealt) == {"vision": (32, 2 * 4 + 2 * 16), "generator": (5, 8)}
    batch["vision"]["segments"][:] = 0
    assert phases.capacities(phases.deal(batch))["vision"] == (None, None)


def test_items_that_cannot_be_dealt_apart_stay_with_their_rows():
    """Two full rows of the batch fit into each row of the phase, but their items sum to 24 in no other way."""
    rows = [[7, 5], [6, 6], [9, 3], [7, 5]]
    lengths, places = np.array(sum(rows, [])), np.array([[0, first] for first, _ in rows]).ravel()
    phase = vision_rows(rows=2, slots=12, capacities=(24,), values_per_slot=1)
    items = deal_phase(BatchItems(np.repeat(np.arange(4), 2), places, lengths), phase, 4, 1)
    np.testing.assert_array_equal(items[:, 3], [0, 0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(items[:, 4], [0, 7, 12, 18, 0, 9, 12, 19])


def test_a_square_weight_counts_values_and_travels_with_the_phase():
    weighted = dealt_phases({"vision": 2, "audio": 2}, {}, quadratic_cost_weights=(("frames", 0.25),))
    assert {name: phase.quadratic_cost_weight for name, phase in weighted.phases.items()} == {
        "vision": 0.0,
        "audio": 0.25,
    }
    assert DealtPhases.from_json(json.loads(json.dumps(weighted.to_json()))) == weighted
    phase = dataclasses.replace(weighted.phases["audio"], rows=2, slots=24, capacities=(24,), values_per_slot=4)
    lengths = np.array([8, 4, 4, 2, 2, 2, 2])  # slots, of 4 frames each: a slot's square weighs 1
    items = deal_phase(BatchItems(np.zeros(7, int), np.cumsum(lengths) - lengths, lengths), phase, 1, 1)
    np.testing.assert_array_equal(items[:, 3], deal_items(lengths, 2, [24], 1.0).rows)
    with pytest.raises(DataError, match=r"square weight of a phase is -1.0; it must be a finite number"):
        PhaseRows.from_json(phase.to_json() | {"quadratic_cost_weight": -1.0})


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("pixels", r"gives pixels the weight 0.5, but no encoder .* reads pixels; its fields: patches, frames"),
        ("tokens", r"gives tokens the weight 0.5, but no encoder"),
        ("frames", r"gives frames the weight 0.5, but unit audio .* no rows of its own .* give it UnitPlan.phase_rows"),
    ],
)
def test_quadratic_cost_weights_without_effect_are_refused(field, message):
    with pytest.raises(DataError, match=message):
        dealt_phases({"vision": 2, "audio": 0}, {}, quadratic_cost_weights=((field, 0.5),))
