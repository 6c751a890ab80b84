"""Checks that configurations share."""


def require_positive(config: object, *names: str) -> None:
    """Raises ValueError, naming the field, if one of these fields is below 1."""
    for name in names:
        value = getattr(config, name)
        if value < 1:
            raise ValueError(f"{type(config).__name__}.{name} is {value}; it must be at least 1")


def require_divides(config: object, divisor: str, name: str) -> None:
    """Raises ValueError if one field does not divide another."""
    small, large = getattr(config, divisor), getattr(config, name)
    if large % small:
        raise ValueError(f"{type(config).__name__}.{divisor} = {small} does not divide {name} = {large}")


def require_loss(config: object, name: str) -> None:
    """Raises ValueError if a field is neither None nor a loss function: something hashable to be called, no class."""
    loss = getattr(config, name)
    where = f"{type(config).__name__}.{name}"
    if isinstance(loss, type):
        raise ValueError(f"{where} is the class {loss.__name__}; give an instance of it (in gin, @{loss.__name__}())")
    if loss is not None and not callable(loss):
        raise ValueError(f"{where} is {loss!r}; give a function, or an instance of a class with __call__")
    try:
        hash(loss)
    except TypeError as error:
        raise ValueError(f"{where} is {loss!r}, which has no hash; make its class a frozen dataclass") from error


def require_one_of(config: object, name: str, known: tuple[str, ...]) -> None:
    """Raises ValueError if a field has none of the known values."""
    value = getattr(config, name)
    if value not in known:
        raise ValueError(f"{type(config).__name__}.{name} is {value!r}; choose from {', '.join(known)}")
