"""Animations of the agent as it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noterl import saving
from noterl.callback import Callback
from noterl.random import check_seed
from noterl.types import Logs
from noterl.utils.checks import check_positive, check_word
from noterl.utils.optional import require

from .cadence import Cadence


class RecordVideo(Callback):
    """Play an episode every so often, without learning from it, and write it as an animation.

    Files are named after what was counted, `<path>/episodes-000050.gif`. Training is left exactly as it was.

    Args:
        path: the directory of the files; made if need be.
        every: how often, at the end of the first episode that reaches or passes a multiple.
        unit: of `every`: "episodes", "steps" or "updates".
        kind: "gif", or "mp4", which needs the extra `mp4`.
        env: where to play, as `Agent.evaluate` takes it; it must be able to render "rgb_array".
        max_steps: cut the episode off there.
        fps: frames per second.
        seed: of the environment; by default one of the agent's own, the same each time.

    Raises:
        ValueError: if an argument is not what it may be; at the first animation, if the environment renders no frames.
        ImportError: without the extra `mp4`, where it is needed.
        OSError: as training begins, if the directory cannot be written.

    Attributes:
        files: what was written, oldest first.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import RecordVideo
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> recorder = RecordVideo("videos", every=2, max_steps=3)
    >>> history = agent.fit(episodes=5, callbacks=[recorder], verbose=0)
    >>> [file.name for file in recorder.files]
    ['episodes-000002.gif', 'episodes-000004.gif']
    """

    def __init__(
        self,
        path: str | Path,
        every: int = 50,
        unit: str = "episodes",
        *,
        kind: str = "gif",
        env: Any = None,
        max_steps: int | None = None,
        fps: int = 30,
        seed: int | None = None,
    ) -> None:
        self.path, self.env = Path(path), env
        self.unit = check_word("unit", unit, ("episodes", "steps", "updates"))
        self.kind = check_word("kind", kind, ("gif", "mp4"))
        self.max_steps = check_positive("max_steps", max_steps, none=True)
        self.fps = check_positive("fps", fps)
        check_seed(seed)
        self.seed = seed
        if kind == "mp4":
            require("imageio_ffmpeg", "mp4", "RecordVideo with kind='mp4'")
        self.files: list[Path] = []
        self._cadence = Cadence("every", every, unit)

    def on_train_begin(self, logs: Logs) -> None:
        """Count from here, and find out now whether files can be written there."""
        self._cadence.go_on(self.agent)
        saving.check_writable(self.path / "probe")

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Record if it is time."""
        if not logs.get("complete", True) or not self._cadence.due(self.agent):
            return
        file = self.path / f"{self.unit}-{getattr(self.agent, self.unit):06d}.{self.kind}"
        self.agent.animate(file, self.env, self.max_steps, self.fps, seed=self.seed)
        if file not in self.files:
            self.files.append(file)

    def get_state(self) -> dict[str, Any]:
        """Return the names of the files, and since when it counts."""
        return {"files": [file.name for file in self.files], "mark": self._cadence.saved_mark}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned; files are those of this directory."""
        self.files = [self.path / Path(name).name for name in state["files"]]
        self._cadence.mark = state["mark"]
