"""A callback that records animations during training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noterl.callback import Callback, Every
from noterl.random import check_seed
from noterl.types import Logs
from noterl.utils.checks import check_bool, check_positive, check_word
from noterl.utils.files import check_writable_folder, user_path
from noterl.utils.optional import require


class RecordVideo(Callback):
    """Play an episode at a fixed frequency, without learning, and write an animation.

    A file name holds the unit and the count, such as `<path>/episodes-000050.gif`. A file of that name is replaced,
    even if another run has written it, so use a directory for each run. Training is not affected.

    Args:
        path: directory of the files, which is created if necessary.
        every: number of `unit` between animations. One is made at the end of the first episode that reaches a
            multiple.
        unit: "episodes", "steps" or "updates".
        kind: "gif", or "mp4", which needs the extra `mp4`.
        env: environment to play in, as in `Agent.evaluate`, with the render mode "rgb_array".
        max_steps: the episode is cut off after this number of steps; None for no limit.
        fps: frames per second.
        seed: seed of the environment in every animation; by default the agent's seed.
        overlay: whether frames show the step, the return so far, and the agent's estimate of the value.

    Raises:
        ValueError: if an argument is not one of the allowed values; at the first animation, if the environment renders
            no frames.
        ImportError: if `kind` is "mp4" and the extra `mp4` is not installed.
        OSError: when training begins, if files cannot be written in the directory.

    Attributes:
        files: paths of the written files, oldest first.

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
        overlay: bool = False,
    ) -> None:
        self.path: Path = user_path(path)
        self.env: Any = env
        check_word("unit", unit, ("episodes", "steps", "updates"))
        self.kind: str = check_word("kind", kind, ("gif", "mp4"))
        self.max_steps: Any = check_positive("max_steps", max_steps, none=True)
        self.fps: int = check_positive("fps", fps)
        check_seed(seed)
        self.seed: int | None = seed
        self.overlay: bool = check_bool("overlay", overlay)
        if kind == "mp4":
            require("imageio_ffmpeg", "mp4", "RecordVideo with kind='mp4'")
        self.files: list[Path] = []
        self.every: Every = Every(every, unit, at="episode", name="every")

    def on_train_begin(self, logs: Logs) -> None:
        """Check that files can be written in the directory."""
        check_writable_folder(self.path)

    def on_due(self, logs: Logs) -> None:
        """Play an episode and write the animation."""
        file = self.path / f"{self.every.unit}-{self.every.now(self.agent):06d}.{self.kind}"
        self.agent.animate(file, self.env, self.max_steps, self.fps, seed=self.seed, overlay=self.overlay)
        if file not in self.files:
            self.files.append(file)

    def get_state(self) -> dict[str, Any]:
        """Return the names of the files."""
        return {"files": [file.name for file in self.files]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned; the files are expected in the directory `path`."""
        # Only the last part of a name counts, so that a state cannot point outside of the directory.
        self.files = [self.path / Path(name).name for name in state["files"]]
