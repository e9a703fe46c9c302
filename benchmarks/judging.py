"""Find the first weights of a run that hold a score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def judge(paths: Sequence[Path], mean_return: Callable[[Path], float], score: float) -> dict[str, Any]:
    """Return the mean returns of the weights until two in a row hold the score, and of the last weights.

    Args:
        paths: of the weights in the order of training; the name of each file is the number of environment steps.
        mean_return: path -> the mean return of 100 greedy episodes.
        score: the least mean return that holds the score.

    Returns:
        `points`, a list of (steps, time of the file in seconds, mean return); `held`, the place of the first of two
        points that hold the score, or None; `final`, the mean return of the last weights.
    """
    points: list[tuple[int, float, float]] = []
    held = None
    for path in paths:
        points.append((int(path.name.split(".")[0]), path.stat().st_mtime, mean_return(path)))
        if len(points) > 1 and min(points[-1][2], points[-2][2]) >= score:
            held = len(points) - 2
            break
    final = points[-1][2] if len(points) == len(paths) else mean_return(paths[-1])
    return {"points": points, "held": held, "final": final}
