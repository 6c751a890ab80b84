"""A plan as a drawing on the page of a run: devices from left to right, a row for each pipeline rank of each unit."""

from collections.abc import Iterator

from sharding.html.colours import EMPTY, series_colour
from sharding.html.elements import Html, element
from sharding.html.svg import Scale, bottom_axis, drawing, line, rectangle, text, text_width
from sharding.plans.plan import Plan
from sharding.plans.text.device_ranges import device_ranges
from sharding.plans.unit_plan import UnitPlan

_WIDTH, _NARROWEST, _LABELS, _ROW = 820, 600, 190, 26
_MOST_ROWS = 60


def plan_drawing(plan: Plan) -> Html:
    """Draws which devices hold which stages; the pointer shows the layout of each."""
    rows = [
        (number, unit, rank)
        for number, unit in enumerate(plan.units)
        for rank in range(unit.parallelism.pipeline_replicas * unit.pp)
    ]
    shown = rows[:_MOST_ROWS]
    devices = plan.devices_needed
    scale = Scale(0, devices, _LABELS, _WIDTH - 12)
    shapes = [
        shape
        for place, (number, unit, rank) in enumerate(shown)
        for shape in _row(unit, rank, series_colour(number), scale, place * _ROW)
    ]
    bottom = _ROW * len(shown)
    centres = Scale(0, devices - 1, scale(0.5), scale(devices - 0.5))
    axis = bottom_axis(centres, bottom + 2, "device")
    picture = drawing(_WIDTH, bottom + 40, f"{devices} devices by stage", shapes, axis, narrowest=_NARROWEST)
    left_out = f"{len(rows) - len(shown)} more pipeline ranks are not drawn." if len(rows) > len(shown) else ""
    return element("div", picture, element("p", left_out, class_="note") if left_out else "")


def _row(unit: UnitPlan, rank: int, colour: str, scale: Scale, top: int) -> Iterator[Html]:
    replica, first_stage = divmod(rank, unit.pp)
    name = unit.name if unit.pp == 1 else f"{unit.name} {first_stage}"
    if unit.parallelism.pipeline_replicas > 1:
        name += f", pipeline replica {replica}"
    if top and not rank:
        yield line(0, top, _WIDTH, top)
    yield text(0, top + 17, name)
    yield rectangle(scale.start, top + 4, scale.end - scale.start, _ROW - 8, EMPTY)
    devices = sorted(set(unit.rank_devices(rank)))
    layers = ", ".join(str(unit.layers[stage]) for stage in range(first_stage, len(unit.layers), unit.pp))
    sizes = {key: getattr(unit.parallelism, key) for key in ("dp", "tp", "cp", "ep")}
    layout = ", ".join(f"{key} {size}" for key, size in sizes.items() if size > 1)
    words = f"{layers} layer{'' if layers == '1' else 's'}" + (f", {layout}" if layout else "")
    hint = f"{name} ({' > '.join(unit.modules)}): devices {device_ranges(devices)}, {words}"
    for first, last in _runs(devices):
        left, right = scale(first), scale(last + 1)
        yield rectangle(left + 1, top + 3, right - left - 2, _ROW - 6, colour, hint)
        if text_width(words) < right - left - 8:
            yield text(left + 7, top + 17, words, style="pointer-events:none", fill="#0b0d0f")


def _runs(devices: list[int]) -> Iterator[tuple[int, int]]:
    """Yields the first and the last device of every run of consecutive devices."""
    first = devices[0]
    for device, following in zip(devices, [*devices[1:], None], strict=True):
        if following != device + 1:
            yield first, device
            if following is not None:
                first = following
