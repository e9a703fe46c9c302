"""Errors about packages that an environment needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from gymnasium.error import DependencyNotInstalled, NamespaceNotFound

# noterl's extras by those of gymnasium.
_EXTRAS = {
    **{name: name for name in ("atari", "box2d", "classic-control")},
    "toy-text": "classic-control",
    "mujoco": "robotics",
}


@contextmanager
def named_packages(what: str) -> Iterator[None]:
    """Inside the context, gymnasium's error about a missing package becomes an ImportError that names noterl's extra.

    Args:
        what: what needs the package, the beginning of the message.
    """
    try:
        yield
    except NamespaceNotFound as error:
        if not str(error).startswith("Namespace ALE"):
            raise
        raise ImportError(f'{what}: {error}; noterl has an extra for it: pip install "noterl[atari]"') from error
    except DependencyNotInstalled as error:
        extra_of_gymnasium = re.search(r"gymnasium\[([\w-]+)\]", str(error))
        extra = _EXTRAS.get(extra_of_gymnasium[1].replace("_", "-")) if extra_of_gymnasium else None
        hint = "" if extra is None else f'; noterl has an extra for it: pip install "noterl[{extra}]"'
        raise ImportError(f"{what}: {error}{hint}") from error
