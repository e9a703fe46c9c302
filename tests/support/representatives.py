"""Parameters of tests of which most cases run on torch only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def representatives(cases: Iterable[Any], *everywhere: Any) -> list[Any]:
    """Return the cases as parameters: these run on every backend, and the others on torch only.

    A case that is a tuple holds the values of several arguments.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in everywhere else pytest.mark.backends("torch"),
        )
        for case in cases
    ]
