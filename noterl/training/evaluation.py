"""Playing whole episodes without learning and without an effect on training."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from noterl.acting.actor import Actor
from noterl.acting.policy_state import State, rows_of, stacked
from noterl.callback import Events
from noterl.collect.info import EpisodeInfo
from noterl.envs import EnvSource
from noterl.envs.checking.checker import Checker
from noterl.envs.multi_agent.team import Team
from noterl.envs.observation import ObservationEncoder
from noterl.envs.rewards import unclipped
from noterl.explorer import Explorer
from noterl.heads import one_of
from noterl.random import Generators
from noterl.training.dispatch import call_handlers
from noterl.utils.checks import check_bool, check_positive
from noterl.utils.errors import run_all
from noterl.utils.interrupts import check_signals
from noterl.utils.masks import ACTION_MASK, mask_spec, read_mask

# The number of steps of one episode after which a warning names `max_steps`.
LONG_EPISODE = 100_000

# The names in the result of `evaluate`, besides those of `info`.
STATISTICS = ("returns", "lengths", "reward_mean", "reward_std", "reward_iqm", "length_mean", "success_rate")


class Player(NamedTuple):
    """How an agent plays outside of training.

    Attributes:
        actor: chooses the actions.
        source: makes the environments.
        encoder: converts observations into arrays for networks.
        team_reward: `MultiAgent.team_reward` of several agents; None for one agent.
        step: environment steps of training so far; exploration may depend on it.
        checker: checks the observations and rewards.
    """

    actor: Actor
    source: EnvSource
    encoder: ObservationEncoder
    team_reward: Callable[..., Any] | None
    step: int
    checker: Checker

    def make_environment(self, render_mode: str | None = None) -> Any:
        """Return an environment to play in; the caller closes it."""
        environment: Any = self.source.make_evaluation(render_mode=render_mode)
        if self.team_reward is not None:
            environment.team_reward = self.team_reward
        return environment

    def act(self, episodes: list[Episode], explorer: Explorer | None = None) -> list[Any]:
        """Return an action for the newest observation of each episode, without exploration if `explorer` is None."""
        observations = self.encoder.stack([episode.observation for episode in episodes])
        states: State = stacked([episode.state for episode in episodes])
        actions, states = self.actor.act(observations, self.step, explorer, self._masks(episodes), states)
        for episode, state in zip(episodes, rows_of(states, len(episodes)), strict=True):
            episode.state = state
        return [one_of(actions, row, self.source.action_space) for row in range(len(episodes))]

    def _masks(self, episodes: list[Episode]) -> np.ndarray | None:
        """Return the legal actions in each episode, `[N, A]`; None if no environment reports them."""
        if all(episode.mask is None for episode in episodes):
            return None
        ((shape, dtype, default),) = mask_spec(self.source.action_space).values()
        everything = np.full(shape, default, dtype)
        return np.stack([everything if episode.mask is None else episode.mask for episode in episodes])

    def _mask(self, info: Mapping[str, Any], terminated: bool = False) -> np.ndarray | None:
        """Return the legal actions; None if the environment does not report them, or the head takes no masks."""
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


def warn_if_long(length: int) -> None:
    """Warn if an episode has this number of steps, because it may never end."""
    if length == LONG_EPISODE:
        warnings.warn(
            f"an episode has not ended after {LONG_EPISODE:,} steps outside of training; if it may never end, pass "
            "max_steps= or wrap the environment in gymnasium.wrappers.TimeLimit",
            RuntimeWarning,
            stacklevel=3,
        )


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
        mask: the legal actions, bool `[A]`; None if the environment does not report them.
        state: the state of the policy before the next step, `[...]` by name.
        earned: the return of each of several agents, `[agents]`; 0 for one agent.
        success: `is_success` at the end; None if this episode does not report it.
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


def evaluate(
    player: Player,
    events: Events,
    episodes: int,
    seed: int,
    deterministic: bool,
    num_envs: int,
    info: Mapping[str, str],
    max_steps: int | None,
) -> dict[str, Any]:
    """Play episodes and return the statistics that `Agent.evaluate` documents.

    Episode `i` has the same seed for every number of environments. `info` holds the reductions by key.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """
    check_positive("episodes", episodes)
    check_positive("num_envs", num_envs)
    check_positive("max_steps", max_steps, none=True)
    check_bool("deterministic", deterministic)
    seeds, explorer = seeds_and_explorer(player, seed, episodes, deterministic)
    result: dict[str, Any] = {}
    to_play = [Episode(seed, info=EpisodeInfo(info)) for seed in seeds]

    def play() -> None:
        call_handlers(events.on_evaluate_begin, {})
        _play(player, to_play, min(num_envs, episodes), explorer, max_steps)
        result.update(statistics(to_play, player.source.team))

    run_all(
        play,
        lambda: call_handlers(events.on_evaluate_end, dict(result)),
        player.actor.mark_stale,  # the hooks may have set other weights for the evaluation
    )
    return result


def seeds_and_explorer(
    player: Player, seed: int, episodes: int, deterministic: bool
) -> tuple[list[int], Explorer | None]:
    """Return the seed of each episode's environment, and how the agent explores; None if it does not."""
    generators = Generators(seed)
    seeds = generators("evaluation").integers(2**31, size=int(episodes)).tolist()
    if deterministic:
        return seeds, None
    return seeds, player.actor.explorer.copy_with_generator(generators("exploration of evaluation"))


def _play(
    player: Player, episodes: list[Episode], num_envs: int, explorer: Explorer | None, max_steps: int | None
) -> None:
    """Play the episodes in environments that are stepped together."""
    player.actor.mark_stale()
    waiting = iter(episodes)
    with contextlib.ExitStack() as closing:
        environments = [closing.enter_context(contextlib.closing(player.make_environment())) for _ in range(num_envs)]
        playing: dict[int, Episode] = {}
        reset_noise, drop_noise = (getattr(explorer, name, None) for name in ("reset", "remove_lane"))
        if reset_noise is not None:
            reset_noise()  # the copy of the training noise begins again in all lanes

        def begin_next(lane: int) -> None:
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

        for lane in range(num_envs):
            begin_next(lane)
        while playing:
            actions = player.act(list(playing.values()), explorer)
            for (lane, episode), action in zip(list(playing.items()), actions, strict=True):
                if player.play_step(episode, environments[lane], action) or episode.length == max_steps:
                    begin_next(lane)


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
        found = [each[key] for each in values if key in each]
        if found:
            result[key] = float(np.mean(found))
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
