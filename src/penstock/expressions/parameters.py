"""Kernels with parameters that Arrow wants constant, on columns of parameters.

The rows are cut into groups of equal parameters, and the kernel is called once for each: the cost
grows with the different combinations, not with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.expressions.nodes import as_array
from penstock.expressions.ordering import bits, canonical, group_codes

__all__ = ["by_parameters", "rows_of"]


def rows_of(values: tuple[Any, ...]) -> int:
    """The number of rows of arrays and scalars."""
    return next((len(value) for value in values if not isinstance(value, pa.Scalar)), 1)


def by_parameters(
    *values: Any,
    inner: Callable[..., Any],
    names: tuple[str, ...],
    options: Mapping[str, Any],
    target: pa.DataType,
) -> pa.Array:
    """``kernel(*values, **parameters)``, the last values being parameters; null where one is."""
    rows = rows_of(values)
    arrays = [as_array(value, rows) for value in values]
    plain, parameters = arrays[: -len(names)], arrays[-len(names) :]
    known = np.ones(rows, bool)
    for parameter in parameters:
        known &= parameter.is_valid().to_numpy(zero_copy_only=False)
    codes, first = group_codes([bits(canonical(one)) for one in parameters], rows)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(first)))
    pieces, places = [], []
    for group, row in enumerate(first):
        place = order[ends[group - 1] if group else 0 : ends[group]]
        chosen = [value.take(pa.array(place)) for value in plain]
        if known[row]:
            settings = {
                name: one[int(row)].as_py() for name, one in zip(names, parameters, strict=True)
            }
            pieces.append(as_array(inner(*chosen, **settings, **options), len(place)))
        else:
            pieces.append(pa.nulls(len(place), target))
        places.append(place)
    if not pieces:
        return pa.array([], target)
    back = np.empty(rows, np.int64)
    back[np.concatenate(places)] = np.arange(rows)
    return pa.concat_arrays(pieces).take(pa.array(back))
