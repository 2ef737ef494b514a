"""Between Arrow arrays and NumPy: values without nulls in, nulls put back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["null_mask", "values_of", "with_nulls"]


def values_of(value: Any) -> Any:
    """NumPy values of an array (nulls as zero), or the Python value of a scalar."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    filled = value.fill_null(0) if value.null_count else value
    return filled.to_numpy(zero_copy_only=False)


def null_mask(*inputs: Any) -> Any:
    """True where any of the inputs is null, or None if none is."""
    mask = None
    for value in inputs:
        if isinstance(value, pa.Array) and value.null_count:
            here = value.is_null().to_numpy(zero_copy_only=False)
            mask = here if mask is None else mask | here
    return mask


def with_nulls(values: Any, kind: pa.DataType, *inputs: Any) -> pa.Array:
    """An Arrow array of NumPy values that is null where any input is."""
    return pa.array(np.asarray(values), kind, mask=null_mask(*inputs))
