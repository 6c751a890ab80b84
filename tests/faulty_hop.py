"""A hop that falsifies what it sends, for tests of what must be noticed."""


def faulty(hop, fault):
    """The hop, with a fault in what arrives: `fault(array) -> array`."""

    class Faulty(type(hop)):
        def __call__(self, array):
            return fault(super().__call__(array))

    bad = Faulty.__new__(Faulty)
    vars(bad).update(vars(hop))
    return bad
