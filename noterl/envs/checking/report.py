"""What `check` hands back.

Owns: the form and the text of a report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Report:
    """What `check` found.

    Attributes:
        name: the environment.
        errors: what makes training go wrong; each once, with the first place it was seen.
        warnings: what is likely a mistake, or costs exactness or speed.
        resumable: how an episode in flight is restored exactly: "state" by the environment's own `get_state` and
            `set_state`, "replay" by its seed and actions, None not at all (a restored run starts the episode afresh).
            Of a vector environment, how each lane's is.
        step_microseconds: the median time of one step; of all lanes together for a vector environment.
        episodes: how many episodes ended.
        steps: how many steps were taken.
        autoreset_mode: of a vector environment: "NextStep", "SameStep" or "Disabled".
    """

    name: str
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    resumable: Literal["state", "replay"] | None = None
    step_microseconds: float = math.nan
    episodes: int = 0
    steps: int = 0
    autoreset_mode: str | None = None

    @property
    def ok(self) -> bool:
        """Tell whether there are no errors."""
        return not self.errors

    def __str__(self) -> str:
        """Return the report as text, the worst first."""
        resumed = {
            "state": "exactly, by its own get_state and set_state",
            "replay": "exactly, by replaying seed and actions",
            None: "not exactly: a restored run starts the episode afresh",
        }[self.resumable]
        lines = [f"{self.name}: {'ok' if self.ok else 'not ok'}"]
        lines += [f"  error: {text}" for text in self.errors]
        lines += [f"  warning: {text}" for text in self.warnings]
        if self.autoreset_mode is not None:
            lines.append(f"  autoreset mode: {self.autoreset_mode}")
        lines.append(f"  an episode in flight is restored {resumed}")
        lines.append(f"  {self.episodes} episodes ended in {self.steps} steps of {self.step_microseconds:.3g} µs")
        return "\n".join(lines)


class Notes:
    """The findings of one check: each kind once, with the first place it was seen."""

    def __init__(self, report: Report) -> None:
        """Write into `report`."""
        self.report = report
        self._known: set[str] = set()

    def add(self, severity: str, key: str, text: str) -> None:
        """Note an "error" or a "warning", unless one of the same key is noted."""
        if key in self._known:
            return
        self._known.add(key)
        (self.report.errors if severity == "error" else self.report.warnings).append(text)
