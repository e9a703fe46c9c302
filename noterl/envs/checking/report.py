"""The report that `check` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Report:
    """The findings of `check`.

    Attributes:
        name: of the environment.
        errors: faults that end training or make the results wrong, with the place of each.
        warnings: likely mistakes, and causes of inexact runs; each once, with the first place.
        resumable: how an episode in progress is restored exactly: "state" by the environment's own `get_state` and
            `set_state`, "replay" by repeating the actions since the seeded reset. None for neither.
        episodes: the number of finished episodes.
        steps: the number of steps.
        autoreset_mode: of a vector environment that steps the lanes together: "NextStep", "SameStep" or "Disabled".
        place: the current place, such as "episode 0, step 3"; findings name the place.
    """

    name: str
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    resumable: Literal["state", "replay"] | None = None
    episodes: int = 0
    steps: int = 0
    autoreset_mode: str | None = None
    place: str = field(default="", repr=False)

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return not self.errors

    def error(self, text: str) -> None:
        """Add an error."""
        self.errors.append(f"{text} ({self.place})" if self.place else text)

    def warn(self, text: str) -> None:
        """Add a warning, unless the report has the same warning from another place."""
        if not any(warning.startswith(text) for warning in self.warnings):
            self.warnings.append(f"{text} ({self.place})" if self.place else text)

    def __str__(self) -> str:
        """Return the report as text, errors first."""
        resumed = {
            "state": "exactly, by its own get_state and set_state",
            "replay": "exactly, by repeating the actions since its reset",
            None: "not exactly: it restarts",
        }[self.resumable]
        lines = [f"{self.name}: {'ok' if self.ok else 'not ok'}"]
        lines += [f"  error: {text}" for text in self.errors]
        lines += [f"  warning: {text}" for text in self.warnings]
        if self.autoreset_mode is not None:
            lines.append(f"  autoreset mode: {self.autoreset_mode}")
        lines.append(f"  an episode in progress is restored {resumed}")
        lines.append(f"  {self.episodes} episodes ended in {self.steps} steps")
        return "\n".join(lines)
