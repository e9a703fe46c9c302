"""Playing whole episodes without learning and without an effect on training."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from noterl.acting.actor import Actor
from noterl.acting.policy_state import State, rows_of, stacked
from noterl.collect.info import EpisodeInfo, check_info
from noterl.envs import EnvSource
from noterl.envs.checking.checker import Checker
from noterl.envs.ends import warn_if_long
from noterl.envs.multi_agent.team import Team
from noterl.envs.rewards import unclipped
from noterl.envs.source import resolve_like
from noterl.envs.wrappers.classic import layers
from noterl.explorer import Explorer
from noterl.heads import one_of
from noterl.random import Generators, check_seed
from noterl.training.dispatch import CallbackList, call_handlers
from noterl.training.parts import Parts
from noterl.utils.checks import check_bool, check_positive
from noterl.utils.errors import run_all
from noterl.utils.interrupts import check_signals
from noterl.utils.masks import ACTION_MASK, mask_spec, read_mask

# The names in the result of `evaluate`, besides those of `info`.
STATISTICS = ("returns", "lengths", "reward_mean", "reward_std", "reward_iqm", "length_mean", "success_rate")


class Player(NamedTuple):
    """How an agent plays outside of training.

    Attributes:
        parts: the parts of the agent.
        actor: chooses the actions.
        source: makes the environments.
        checker: checks the observations and rewards.
    """

    parts: Parts
    actor: Actor
    source: EnvSource
    checker: Checker

    def make_environment(self, render_mode: str | None = None) -> Any:
        """Return an environment to play in, which the caller closes."""
        environment: Any = self.source.make_evaluation(render_mode=render_mode)
        if self.parts.session.team_reward is not None:
            environment.team_reward = self.parts.session.team_reward
        return environment

    def act(self, episodes: list[Episode], explorer: Explorer | None = None) -> list[Any]:
        """Return an action for the newest observation of each episode, without exploration if `explorer` is None."""
        observations = self.parts.algorithm.spaces.encoder.stack([episode.observation for episode in episodes])
        states: State = stacked([episode.state for episode in episodes])
        actions, states = self.actor.act(
            observations, self.parts.counters.steps, explorer, self._masks(episodes), states
        )
        for episode, state in zip(episodes, rows_of(states, len(episodes)), strict=True):
            episode.state = state
        return [one_of(actions, row, self.source.action_space) for row in range(len(episodes))]

    def _masks(self, episodes: list[Episode]) -> np.ndarray | None:
        """Return the legal actions in each episode, `[N, A]`; None if no environment reports masks."""
        if all(episode.mask is None for episode in episodes):
            return None
        ((shape, dtype, default),) = mask_spec(self.source.action_space).values()
        # An environment that reports no mask allows every action.
        everything = np.full(shape, default, dtype)
        return np.stack([everything if episode.mask is None else episode.mask for episode in episodes])

    def _mask(self, info: Mapping[str, Any], terminated: bool = False) -> np.ndarray | None:
        """Return the legal actions; None if the environment does not report masks, or the head takes no masks."""
        if ACTION_MASK not in info or not self.actor.head.takes_mask:
            return None
        return read_mask(info[ACTION_MASK], self.source.action_space, terminated=terminated)

    def begin(self, episode: Episode, environment: Any) -> None:
        """Reset the environment and store the first observation in `episode`."""
        result = environment.reset(seed=episode.seed)
        episode.observation, info = self.checker.reset(result, episode.lane, 0)
        episode.mask = self._mask(info)
        episode.state = self.actor.start

    def play_step(self, episode: Episode, environment: Any, action: Any) -> bool:
        """Step the environment, record the step in `episode` and return whether the episode is over."""
        check_signals()
        result = environment.step(action)
        episode.length += 1
        warn_if_long(episode.length)
        episode.observation, reward, *ends, info = self.checker.step(result, episode.lane, episode.length)
        terminated, truncated = map(bool, ends)
        # Results hold the rewards before noterl's wrappers clip rewards.
        episode.last_reward = unclipped(reward, info)
        episode.reward += episode.last_reward
        if self.source.team is not None:
            episode.earned = episode.earned + environment.outcome.earned
        episode.info.add(info)
        episode.mask = self._mask(info, terminated)
        if not (terminated or truncated):
            return False
        success = info.get("is_success")
        episode.success = None if success is None else float(success)
        episode.terminated = terminated
        return True


@dataclass
class Episode:
    """One episode so far.

    Attributes:
        seed: the seed of the environment.
        lane: the number of the environment.
        reward: the return.
        last_reward: the reward of the newest step.
        length: number of steps so far.
        observation: the newest observation.
        mask: the legal actions, bool `[A]`; None if the environment does not report masks.
        state: the state of the policy before the next step, `[...]` by name.
        earned: the return of each of several agents, `[agents]`; 0 for one agent.
        success: `is_success` at the end; None if this episode does not report success.
        info: the values of chosen keys of the steps' `info`.
        terminated: whether the environment has terminated the episode.
    """

    seed: int
    lane: int = 0
    reward: float = 0.0
    last_reward: float = 0.0
    length: int = 0
    observation: Any = None
    mask: np.ndarray | None = None
    state: State = field(default_factory=dict)
    earned: Any = 0.0
    success: float | None = None
    info: EpisodeInfo = field(default_factory=EpisodeInfo)
    terminated: bool = False


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
                environments = [
                    closing.enter_context(contextlib.closing(player.make_environment())) for _ in range(count)
                ]
                episodes, steps = self.play(player, environments)
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
            yield Player(self.parts, actor, source, Checker(source.observation_space))
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
        player.actor.mark_stale()
        waiting = iter(episodes)
        playing: dict[int, Episode] = {}
        reset_noise, drop_noise = (getattr(explorer, name, None) for name in ("reset", "remove_lane"))
        if reset_noise is not None:
            reset_noise()  # the copy of the training noise begins again in all lanes

        def begin_next(lane: int) -> Iterator[tuple[Episode, Any]]:
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
