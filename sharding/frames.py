"""Tables as pandas frames. pandas is optional and imported when the first frame is made.

Timelines, comparisons of plans and reports make their frames here.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.common.errors import UserError

if TYPE_CHECKING:
    import pandas


def make_frame(columns: Mapping[str, Sequence[Any] | np.ndarray]) -> "pandas.DataFrame":
    """A frame with these columns; raises UserError if pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise UserError(
            "a frame needs the package pandas, which is not installed: pip install 'mmjax[notebook]'"
        ) from error
    return pandas.DataFrame(dict(columns))
