"""Playing episodes for people: in a window, as images and as an animation; and recording trajectories."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np

from noterl import data, saving
from noterl.acting.player import Episode, Player
from noterl.data.rows import stacked
from noterl.envs.observation import copy_observation
from noterl.envs.packages import named_packages
from noterl.heads import Q
from noterl.training.evaluation import Evaluation, statistics
from noterl.training.parts import Parts
from noterl.training.video import annotate, as_bytes, find_encoder, write_video
from noterl.utils import notebook
from noterl.utils.checks import check_bool, check_number, check_positive
from noterl.utils.files import check_writable_folder, checked_path, user_path
from noterl.utils.optional import require

# The smallest height of a window in pixels; smaller frames are magnified by a whole factor.
_WINDOW_HEIGHT = 400


class Animation(float):
    """The reward of an episode, which a notebook shows as the animation of this episode.

    Attributes:
        path: the file.
    """

    path: Path

    def _repr_html_(self) -> str | None:
        return notebook.animation(self.path)


class Played(dict[str, Any]):
    """What `Agent.play` returns; a notebook shows the statistics, and the video if one was written."""

    video: Path | None = None

    def _repr_html_(self) -> str:
        shown = None if self.video is None else notebook.animation(self.video)
        return (shown or "") + notebook.table(f"{len(self['returns'])} episodes", self)


def animation_path(name: str, path: Any) -> Path:
    """Return the path of an animation.

    Raises:
        ValueError: if the argument called `name` is not the path of a `.gif` or `.mp4` file.
    """
    if not isinstance(path, str | Path) or Path(path).suffix.lower() not in (".gif", ".mp4"):
        if isinstance(path, str | Path) and str(path):
            raise ValueError(f"{name} must end in .gif or .mp4, got {str(path)!r}")
        raise ValueError(f"{name} must be the path of a .gif or .mp4 file, got {path!r}")
    return Path(checked_path(path))


@dataclass(frozen=True)
class View:
    """How episodes are shown; `Agent.play` documents the attributes.

    Raises:
        ValueError: if an attribute is not one of the allowed values, or `render` is set and there is no display.
        OSError: if a file cannot be written.
        ImportError: if an extra is missing.
    """

    render: bool | str = False
    video: Path | None = None
    frame_dir: str | Path | None = None
    frame_frequency: int = 1
    frame_delay: float = 0.0
    fps: int = 30
    overlay: bool = False

    def __post_init__(self) -> None:
        check_positive("frame_frequency", self.frame_frequency)
        check_number("frame_delay", self.frame_delay, low=0)
        check_positive("fps", self.fps)
        check_bool("overlay", self.overlay)
        if self.render != "human":
            check_bool("render", self.render)
        if self.render and not has_display():
            raise ValueError(
                "render: there is no display (DISPLAY is not set); write an animation with video='play.mp4' or images "
                "with frame_dir='frames'"
            )
        if self.video is not None:
            find_encoder(self.video)
            saving.check_writable(self.video)
        if self.frame_dir is not None:
            check_writable_folder(self.frame_dir)

    @property
    def render_mode(self) -> str | None:
        """The render mode of the environment; None if nothing is rendered."""
        if self.video is not None or self.frame_dir is not None or (self.render and self.overlay):
            return "rgb_array"
        return "human" if self.render else None


@dataclass(eq=False)
class Show:
    """Plays the episodes of an evaluation one after another, and shows these episodes.

    Attributes:
        evaluation: the episodes.
        view: how the episodes are shown.
        trajectory: whether the trajectories are recorded.
    """

    evaluation: Evaluation
    view: View
    trajectory: bool = False

    def run(self) -> Played:
        """Play the episodes and return what `Agent.play` documents.

        Raises:
            ValueError: if the environment does not support the render mode.
            OSError: if a file cannot be written, or ffmpeg fails.
        """
        view = self.view
        check_bool("trajectory", self.trajectory)
        self._recorded: list[tuple[list[Any], list[Any], list[float]]] = []
        with self.evaluation.player() as player, contextlib.ExitStack() as stack:
            self._values = value_function(self.evaluation.parts) if view.overlay else None
            stack.enter_context(named_packages("env: the environment cannot be rendered"))
            environment = stack.enter_context(contextlib.closing(player.make_environment(view.render_mode)))
            window = None
            if view.render and view.render_mode == "rgb_array":
                window = stack.enter_context(contextlib.closing(_Window(view.fps)))
            episodes, steps = self.evaluation.play(player, [environment])
            frames = self._shown(self._frames(environment, player, steps), window)
            if view.video is None:
                deque(frames, maxlen=0)  # plays the episodes, and keeps no frames
            else:
                write_video(view.video, frames, view.fps)
        result = Played(statistics(episodes, player.source.team))
        result.video = view.video
        if self.trajectory:
            result["trajectory"] = [
                data.Episode(stacked(observations), np.array(actions), np.array(rewards), episode.terminated)
                for episode, (observations, actions, rewards) in zip(episodes, self._recorded, strict=True)
            ]
        return result

    def _shown(self, frames: Iterator[Any], window: _Window | None) -> Iterator[Any]:
        """Yield the frames, after each one was shown and saved."""
        view = self.view
        for number, frame in enumerate(frames):
            if window is not None:
                window.show(frame)
            if view.frame_dir is not None and number % view.frame_frequency == 0:
                _save(frame, user_path(view.frame_dir) / f"{number:05d}.jpg")
            if view.frame_delay:
                sleep(view.frame_delay)
            yield frame

    def _frames(self, environment: Any, player: Player, steps: Iterable[tuple[Episode, Any]]) -> Iterator[Any]:
        """Record the steps and yield a frame after each reset and step; None if the environment shows itself."""
        for episode, action in steps:
            if self.trajectory:
                if action is None:
                    self._recorded.append(([], [], []))
                else:
                    self._recorded[-1][1].append(np.array(action))
                    self._recorded[-1][2].append(episode.last_reward)
                self._recorded[-1][0].append(copy_observation(player.source.observation_space, episode.observation))
            yield self._frame(environment, player, episode)

    def _frame(self, environment: Any, player: Player, episode: Episode) -> Any:
        """Return the current frame, with the text of the overlay; None if the environment shows itself."""
        if self.view.render_mode != "rgb_array":
            return None
        frame = as_bytes(environment.render())
        if not self.view.overlay:
            return frame
        text = f"step {episode.length}  reward {episode.reward:g}"
        if self._values is not None:
            (value,) = self._values(player.algorithm.spaces.encoder.stack([episode.observation]))
            text += f"  value {value:.3g}"
        return annotate(frame, text)


def value_method(algorithm: Any) -> Callable[[Any], Any] | None:
    """Return the method `value(observation)` of an algorithm; None if `value` is something else."""
    method = getattr(type(algorithm), "value", None)
    if not inspect.isfunction(method):
        return None
    required = [each for each in inspect.signature(method).parameters.values() if each.default is each.empty]
    return algorithm.value if len(required) == 2 else None


def value_function(parts: Parts) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return the function from encoded observations `[N, ...]` to values `[N]`.

    The function is the method `value` of the algorithm, or the largest action value. None if there is neither, or if
    the values depend on a state of the policy.
    """
    if parts.algorithm.state_spec:
        return None
    actor = parts.actor
    value = value_method(parts.algorithm)
    if value is not None:
        compiled = parts.compile_acting(value, "value")
    elif isinstance(parts.algorithm.head, Q):
        compiled = lambda observations: actor.forward(observations).max(axis=-1)  # noqa: E731
    else:
        return None
    return lambda observations: compiled(actor.network_inputs(observations))


def _save(frame: np.ndarray, path: Path) -> None:
    from PIL import Image

    Image.fromarray(frame).save(path, quality=95)


def has_display() -> bool:
    """Return whether a window can be opened."""
    variables = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    return not sys.platform.startswith("linux") or any(map(os.environ.get, variables))


class _Window:
    """A window that shows frames."""

    def __init__(self, fps: int) -> None:
        self._pygame = require("pygame", "classic-control", "play(render=True) with frames")
        self._pygame.display.init()
        self._clock = self._pygame.time.Clock()
        self._fps = fps
        self._screen: Any = None

    def show(self, frame: np.ndarray) -> None:
        """Show a frame, at most `fps` per second; raise a KeyboardInterrupt if the user closed the window."""
        pygame = self._pygame
        factor = max(1, _WINDOW_HEIGHT // frame.shape[0])
        image = np.repeat(np.repeat(frame, factor, axis=0), factor, axis=1).swapaxes(0, 1)
        if self._screen is None:
            self._screen = pygame.display.set_mode(image.shape[:2])
            pygame.display.set_caption("noterl")
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            raise KeyboardInterrupt("the window was closed")
        self._screen.blit(pygame.surfarray.make_surface(image), (0, 0))
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()
