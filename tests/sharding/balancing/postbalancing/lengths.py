"""Lengths of samples to balance."""

import numpy as np
from hypothesis import strategies as st

few = st.lists(st.integers(0, 30), max_size=6).map(lambda numbers: np.array(numbers, int))
many = st.lists(st.integers(0, 3000), max_size=120).map(lambda numbers: np.array(numbers, int))
