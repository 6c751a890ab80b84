"""A plan as HTML, without a script or style sheet: a table of its units and a drawing of modules over devices.

Notebooks show a `Plan` in this form.
"""

from collections.abc import Sequence

from sharding.html.colours import series_colour
from sharding.html.elements import Html, element, table
from sharding.html.numbers import count_of
from sharding.html.svg import Scale, bottom_axis, drawing, rectangle, text, text_width
from sharding.plans.device_numbers import count_distinct, highest
from sharding.plans.unit_plan import UnitPlan

_WIDTH, _NARROWEST, _LABELS, _ROW = 820, 600, 176, 26
_SEAM = 2.0  # pixels between stages, where there is room


def plan_html(units: Sequence[UnitPlan], rows: Sequence[dict[str, str]], schedule: str, microbatches: int) -> Html:
    """A plan for notebooks and pages.

    Args:
        units: The units.
        rows: Rows of the table of units (`Plan.table`).
        schedule: Name of the schedule.
        microbatches: Microbatches of a step.
    """
    devices = count_distinct(unit.devices for unit in units)
    words = f"{count_of(devices, 'device')}, {count_of(microbatches, 'microbatch')}, schedule {schedule}."
    cells = [tuple(row.values()) for row in rows]
    return element("div", element("p", words), placement_drawing(units), table(tuple(rows[0]), cells))


def placement_drawing(units: Sequence[UnitPlan]) -> Html:
    """Which devices hold which modules: a row for every unit, a rectangle for every run of devices of a stage.

    A rectangle is labelled with the layers of its stages; where the pointer rests on it, it names the devices.
    """
    count_of_devices = 1 + max(highest(unit.devices) for unit in units)
    scale = Scale(0, count_of_devices, _LABELS, _WIDTH - 12)
    shapes = [_unit(unit, number, scale) for number, unit in enumerate(units)]
    bottom = 4 + _ROW * len(units)
    axis = bottom_axis(scale, bottom, "device")
    return drawing(_WIDTH, bottom + 38, f"Devices of {len(units)} units", shapes, axis, narrowest=_NARROWEST)


def _unit(unit: UnitPlan, number: int, scale: Scale) -> Html:
    top = 4 + _ROW * number
    shapes = [text(0, top + 17, unit.name)]
    for rank in range(unit.parallelism.pipeline_replicas * unit.pp):
        replica, first_stage = divmod(rank, unit.pp)
        layers = "+".join(str(unit.layers[stage]) for stage in range(first_stage, unit.stage_count, unit.pp))
        label = f"{layers} layers" if layers != "1" else "1 layer"
        place = f"stage {first_stage}" + (
            f" of pipeline replica {replica}" if unit.parallelism.pipeline_replicas > 1 else ""
        )
        for first, last in _runs(sorted(unit.rank_devices(rank))):
            left, wide = scale(first), scale(last + 1) - scale(first)
            hint = f"{' > '.join(unit.modules)}, {place}, {label}: devices {first} to {last}"
            seam = _SEAM if wide > 3 * _SEAM else 0.0
            shapes.append(rectangle(left, top + 2, wide - seam, _ROW - 6, series_colour(number), hint))
            if text_width(label) < wide - 6:
                shapes.append(text(left + wide / 2, top + 17, label, "middle", fill="#10151a"))
    return element("g", shapes)


def _runs(devices: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of the runs of consecutive devices."""
    starts = [device for place, device in enumerate(devices) if not place or device != devices[place - 1] + 1]
    ends = [device for place, device in enumerate(devices) if device + 1 not in devices[place + 1 : place + 2]]
    return list(zip(starts, ends, strict=True))
