"""The subject of a timeline in words: the model and its modules, the rows, and the devices."""

from sharding.html.numbers import count, significant
from sharding.plans.plan_purpose import ModuleSize, PlanPurpose

_MAGNITUDES = ((1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def subject_in_words(purpose: PlanPurpose, devices: int) -> str:
    """The model with the size of each module, the rows, the cluster and assumptions that are not its default.

    Args:
        purpose: The model, rows and cluster that were simulated.
        devices: Devices that the plan takes.
    """
    model = ", ".join(_module_in_words(size) for size in purpose.model)
    name = purpose.configuration.title or "model"
    rows = f"{count(purpose.rows)} rows a step" if purpose.rows else ""
    cluster = f" of {purpose.cluster}" if purpose.cluster else ""
    taken = f"{count(devices)} of {count(purpose.devices)}" if purpose.devices else count(devices)
    sentences = [f"{name}: {model}" if model else name, ", ".join(filter(None, [rows, f"{taken} devices{cluster}"]))]
    if purpose.configuration.profile:
        sentences.append(f"Layers take what {purpose.configuration.profile} has measured")
    if purpose.hops:
        occupied = "the devices at both ends" if purpose.hops == "rendezvous" else "no device"
        sentences.append(f"Hops occupy {occupied} ({purpose.hops})")
    if purpose.without:
        sentences.append(f"Effects left out: {', '.join(purpose.without)}")
    return "".join(f"{sentence}. " for sentence in sentences).strip()


def _module_in_words(size: ModuleSize) -> str:
    layers = f"{size.layers} layer{'s' * (size.layers != 1)}"
    return f"{size.module} ({parameters_in_words(size.parameters)} parameters, {layers})"


def parameters_in_words(parameters: int) -> str:
    """A number of parameters with three significant digits, such as 68.9 B."""
    scale, unit = next((magnitude for magnitude in _MAGNITUDES if parameters >= magnitude[0]), _MAGNITUDES[-1])
    return f"{significant(parameters / scale, 3)} {unit}".strip()
