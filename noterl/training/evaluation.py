"""Playing whole episodes without learning and without an effect on training."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from noterl.acting.player import Episode, Player
from noterl.collect.info import EpisodeInfo, check_info
from noterl.envs.checking.checker import Checker
from noterl.envs.multi_agent.team import Team
from noterl.envs.source import resolve_like
from noterl.envs.wrappers.classic import layers
from noterl.explorer import Explorer
from noterl.random import Generators, check_seed
from noterl.training.dispatch import CallbackList, call_handlers
from noterl.training.parts import Parts
from noterl.utils.checks import check_bool, check_positive
from noterl.utils.errors import run_all

# The names in the result of `evaluate`, besides those of `info`.
STATISTICS = ("returns", "lengths", "reward_mean", "reward_std", "reward_iqm", "length_mean", "success_rate")


@dataclass(eq=False)
class Evaluation:
    """Whole episodes outside of training; `Agent.evaluate` documents the arguments.

    Episode `i` has the same seed for every number of environments.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    parts: Parts
    env: Any
    episodes: int
    seed: int | None
    deterministic: bool
    max_steps: int | None
    num_envs: int = 1
    info: Any = None

    def __post_init__(self) -> None:
        check_positive("episodes", self.episodes)
        check_positive("num_envs", self.num_envs)
        check_positive("max_steps", self.max_steps, none=True)
        check_bool("deterministic", self.deterministic)
        check_seed(self.seed)
        self.info = dict(self.parts.session.info) if self.info is None else check_info(self.info, STATISTICS)

    def run(self, callbacks: CallbackList) -> dict[str, Any]:
        """Play the episodes and return the statistics that `Agent.evaluate` documents."""
        events = self.parts.session.events
        callbacks.set_agent(self.parts.algorithm)
        result: dict[str, Any] = {}
        with self.player() as player, contextlib.ExitStack() as closing:

            def play() -> None:
                call_handlers((*events.on_evaluate_begin, *callbacks.handlers("on_evaluate_begin")), {})
                count = min(self.num_envs, self.episodes)
                made = (contextlib.closing(player.make_environment()) for _ in range(count))
                episodes, steps = self.play(player, list(map(closing.enter_context, made)))
                deque(steps, maxlen=0)
                closing.close()
                result.update(statistics(episodes, player.source.team))

            handlers = (*events.on_evaluate_end, *callbacks.handlers("on_evaluate_end"))
            run_all(
                play,
                lambda: call_handlers(handlers, dict(result)),
                player.actor.mark_stale,  # the hooks may have set other weights for the evaluation
            )
        return result

    @contextlib.contextmanager
    def player(self) -> Iterator[Player]:
        """Yield a `Player` in `env`, by default in the training environment; close what was opened for the player."""
        training_source = self.parts.algorithm.spaces.source
        self.parts.algorithm._reads.check()
        actor = self.parts.actor
        source = training_source if self.env is None else resolve_like(self.env, training_source)
        in_use = {id(layer) for lane in getattr(self.parts.session.lanes, "environments", ()) for layer in layers(lane)}
        try:
            # The user's own object, unless it is a lane; without `env`, a copy is preferred.
            is_free = not any(id(layer) in in_use for layer in layers(source.own_object))
            source.lend(is_free and (self.env is not None or source.spec is None))
            yield Player(self.parts.algorithm, actor, source, Checker(source.observation_space))
        finally:
            source.lend(False)
            if source not in (training_source, self.env):
                source.close()

    def play(self, player: Player, environments: Sequence[Any]) -> tuple[list[Episode], Iterator[tuple[Episode, Any]]]:
        """Return the episodes and an iterator, which plays the episodes in environments that are stepped together.

        The iterator yields an episode after the reset, with None, and after each step, with the action.
        """
        # Not the agent's generators, because an evaluation must not change training.
        generators = Generators(self.parts.algorithm.generators.seed if self.seed is None else self.seed)
        seeds = generators("evaluation").integers(2**31, size=int(self.episodes)).tolist()
        explorer = None
        if not self.deterministic:
            explorer = player.actor.explorer.copy_with_generator(generators("exploration of evaluation"))
        episodes = [Episode(seed, info=EpisodeInfo(self.info)) for seed in seeds]
        return episodes, self._steps(player, environments, episodes, explorer)

    def _steps(
        self, player: Player, environments: Sequence[Any], episodes: list[Episode], explorer: Explorer | None
    ) -> Iterator[tuple[Episode, Any]]:
        """Play the episodes; see `play`. A free environment plays the next episode that no environment has played."""
        player.actor.mark_stale()
        waiting = iter(episodes)
        playing: dict[int, Episode] = {}
        reset_noise, drop_noise = (getattr(explorer, name, None) for name in ("reset", "remove_lane"))
        if reset_noise is not None:
            reset_noise()  # the copy of the training noise begins again in all lanes

        def begin_next(lane: int) -> Iterator[tuple[Episode, Any]]:
            """Begin the next episode in a lane; if none is left, the lane leaves `playing`."""
            episode = next(waiting, None)
            if episode is None:
                if drop_noise is not None:
                    drop_noise(list(playing).index(lane))
                del playing[lane]
                return
            if reset_noise is not None and lane in playing:
                reset_noise(list(playing).index(lane))  # noise is sampled for the rows that are still playing
            episode.lane = lane
            player.begin(episode, environments[lane])
            playing[lane] = episode
            yield episode, None

        for lane in range(len(environments)):
            yield from begin_next(lane)
        while playing:
            actions = player.act(list(playing.values()), explorer)
            for (lane, episode), action in zip(list(playing.items()), actions, strict=True):
                over = player.play_step(episode, environments[lane], action)
                yield episode, action
                if over or episode.length == self.max_steps:
                    yield from begin_next(lane)


def statistics(episodes: list[Episode], team: Team | None) -> dict[str, Any]:
    """Return the result of `Agent.evaluate` for the episodes that were played."""
    returns = np.array([episode.reward for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    result: dict[str, Any] = {
        "returns": returns,
        "lengths": lengths,
        "reward_mean": float(returns.mean()),
        "reward_std": float(returns.std()),
        "reward_iqm": interquartile_mean(returns),
        "length_mean": float(lengths.mean()),
    }
    if team is not None:
        means = np.mean([episode.earned for episode in episodes], axis=0).tolist()
        result.update(zip((f"reward_mean/{name}" for name in team.names), means, strict=True))
    successes = [episode.success for episode in episodes]
    if any(success is not None for success in successes):  # some environments report successes only
        result["success_rate"] = float(np.mean([success or 0.0 for success in successes]))
    values = [episode.info.logs() for episode in episodes]
    for key in episodes[0].info.reductions:
        reported = [logs[key] for logs in values if key in logs]
        if reported:
            result[key] = float(np.mean(reported))
    return result


def interquartile_mean(values: np.ndarray) -> float:
    """Return the mean of the middle half of the values (Agarwal et al., 2021).

    A quarter of the values, rounded down, is omitted at each end.

    Example:
    >>> from noterl.training.evaluation import interquartile_mean
    >>> interquartile_mean([0.0, 1.0, 2.0, 100.0])
    1.5
    """
    ordered = np.sort(np.asarray(values, np.float64))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())
