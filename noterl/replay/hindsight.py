"""Hindsight experience replay: transitions with a goal that was achieved in the same episode.

Paper: Andrychowicz et al., "Hindsight experience replay" (2017), section 3.3 and, for the strategies, section 4.5.
The paper's k hindsight goals per original goal correspond to `ratio = k / (k + 1)`; for k = 4, this is 0.8.

Differs: transitions are relabeled when they are sampled, not when they are stored. So each sample
of a transition gets another goal. All rewards of an n-step return are recomputed for the new goal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.envs import EnvSource
from noterl.envs.observation import GOAL_KEYS, is_goal_space
from noterl.envs.spaces import same_layout, show
from noterl.registry import register
from noterl.replay.columns import Array, Leaves
from noterl.replay.relabel import Relabel
from noterl.replay.returns import follow, make_batch, n_step_return
from noterl.replay.storage import Storage
from noterl.types import Batch
from noterl.utils.checks import check_number, check_word

STRATEGIES = ("future", "final", "episode")

Rule = Callable[[Any, Any, Any], Any]


@register
class Hindsight(Relabel):
    """Replaces the goals in a part of each batch by goals that were achieved in the same episodes.

    `Hindsight` needs a goal environment, whose observations are a Dict of "observation", "achieved_goal" and
    "desired_goal". The new goal replaces the desired goal in `observation` and `next_observation`. Rewards and
    terminations are recomputed by `compute_reward(achieved_goal, desired_goal, info)` and `compute_terminated`, which
    takes the same arguments. If the agent has such a function, the agent's function is used, otherwise the
    environment's. The goal that a transition achieved is "achieved_goal" of the next observation.

    Each function is called once per `Replay.gather`, for all relabeled transitions. Goals are arrays `[n, ...]`, `info`
    is an array of `n` empty dicts (infos are not stored), and the functions return `[n]`. If `compute_terminated`
    returns one bool, the function is called again for each transition. If there is no `compute_terminated`, the stored
    terminations are kept.

    Args:
        strategy: "future" samples a goal that this or a later transition of the episode achieved, "episode" one that
            any transition of the episode achieved. "final" takes the goal of the last transition so far.
        ratio: the part of each batch that is relabeled, 0 to 1, rounded up or down to whole transitions.

    Raises:
        ValueError: if `strategy` or `ratio` is not allowed.

    Example:
        >>> import numpy as np
        >>> import noterl
        >>> from noterl.envs import BitFlip
        >>> from noterl.replay import Hindsight
        >>> env = BitFlip(4)
        >>> replay = noterl.Replay(100, relabel=Hindsight("final", ratio=1.0))
        >>> replay.relabel.attach(env)  # `fit` attaches the agent
        >>> replay.build(env.observation_space, env.action_space)
        >>> before, _ = env.reset(seed=0)
        >>> for action in (0, 1):
        ...     after, reward, terminated, truncated, _ = env.step(action)
        ...     index = replay.add(0, before, action, reward, after, terminated, truncated)
        ...     before = after
        >>> batch = replay.gather(replay.sample(1, 2, generator=np.random.default_rng(0)), gamma=0.9)
        >>> bool((batch.observation["desired_goal"] == after["achieved_goal"]).all())
        True
        >>> sorted(zip(batch.index[0].tolist(), batch.reward[0].tolist()))[-1]
        (1, 0.0)
    """

    def __init__(self, strategy: str = "future", ratio: float = 0.8) -> None:
        self.strategy: str = check_word("strategy", strategy, STRATEGIES)
        self.ratio: float = check_number("ratio", ratio, low=0.0, high=1.0)
        self._compute_reward: Rule | None = None
        self._compute_terminated: Rule | None = None

    def attach(self, agent: Any, source: EnvSource | None = None) -> None:
        """Use the functions of an agent (or of any object with such functions), or else of the training environment.

        Raises:
            ValueError: if neither has `compute_reward`, if `compute_reward` returns a column `[n, 1]`, or if the source
                has no environment and cannot make one.
        """
        reward, terminated = (_rule(name, agent, source) for name in ("compute_reward", "compute_terminated"))
        if reward is None:
            raise ValueError(
                "relabel: Hindsight needs compute_reward(achieved_goal, desired_goal, info), and neither the agent nor "
                "the environment defines it"
            )
        self._compute_reward = reward
        self._compute_terminated = terminated
        if source is not None:
            _refuse_column(reward, source.observation_space)

    def bind(self, storage: Storage, observation_space: spaces.Space[Any]) -> None:
        """Use a storage of a goal environment's observations from now on.

        Raises:
            ValueError: if this is bound to another storage, if the space is not the space of a goal environment, or
                if achieved and desired goals are not arrays of one shape and dtype.
        """
        if not isinstance(observation_space, spaces.Dict) or not is_goal_space(observation_space):
            raise ValueError(
                f"relabel: Hindsight needs observations that are a Dict of {', '.join(GOAL_KEYS)}, got "
                f"{show(observation_space)}"
            )
        achieved, desired = (observation_space[name] for name in GOAL_KEYS[1:])
        if isinstance(achieved, spaces.Dict) or not same_layout(achieved, desired):
            raise ValueError(
                f"relabel: Hindsight needs goals that are arrays, the achieved ones like the desired ones, got "
                f"{show(achieved)} and {show(desired)}"
            )
        super().bind(storage, observation_space)

    def sample_choices(self, indices: Array, generator: np.random.Generator) -> dict[str, Array]:
        """Return "goal" `[n]`: for each of the indices `[n]`, the index whose achieved goal becomes the goal, or -1."""
        episodes = self.storage.episodes
        offset = generator.random()
        # Samplers may order indices. Every run of them is relabeled at the ratio, each position with equal probability.
        due = (np.arange(len(indices) + 1) * self.ratio + offset).astype(np.int64)
        chosen = (due[1:] != due[:-1]).nonzero()[0]
        goal = np.full(len(indices), -1)
        relabeled = indices[chosen]
        after = episodes.after(relabeled)
        if self.strategy == "future":
            # 0 to `after` steps later: the transition's own achieved goal is a candidate.
            after = (generator.random(len(relabeled)) * (after + 1)).astype(np.int64)
        elif self.strategy == "episode":
            before = episodes.before(relabeled)
            after = (generator.random(len(relabeled)) * (before + after + 1)).astype(np.int64) - before
        goal[chosen] = episodes.shifted(relabeled, after)
        return {"goal": goal}

    def further_observation(self, observation: Any, next_observation: Any) -> Any:
        """Return the observation with the achieved goal of the step, because relabeled batches hold such goals."""
        return {**observation, "desired_goal": next_observation["achieved_goal"]}

    def gather(self, indices: Array, choices: Mapping[str, Array], gamma: float, n_step: int) -> Batch:
        """Return the batch of indices `[n]`, fields `[n, ...]`, with new goals, rewards and discounts."""
        storage = self.storage
        goal = choices["goal"]
        chosen = (goal >= 0).nonzero()[0]
        steps = follow(storage.successor, indices, n_step)
        # `take` copies, so `_recompute_rewards` can write to these arrays.
        reward = storage.reward.take(steps.indices)
        terminated = storage.terminated.take(steps.indices)
        # One lookup for the new goals and for the goals that the steps achieved.
        achieved = self._achieved(np.concatenate([goal[chosen], steps.indices.take(chosen, axis=1).reshape(-1)]))
        goals = achieved[: len(chosen)]
        if len(chosen):
            self._recompute_rewards(achieved[len(chosen) :], goals, chosen, reward, terminated)
        total, discount, last = n_step_return(steps, reward, terminated, gamma)
        batch = make_batch(storage, indices, last, total, discount)
        for observation in (batch.observation, batch.next_observation):
            observation["desired_goal"][chosen] = goals
        return batch

    def _recompute_rewards(
        self, achieved: Array, goals: Array, chosen: Array, reward: Array, terminated: Array
    ) -> None:
        """Recompute reward and termination for new goals, in place, in the columns `chosen`.

        Goals have the stored dtype, because the environment compares goals in that dtype.

        Args:
            achieved: the goals that the steps achieved, `[n_step * m, ...]`.
            goals: the new goals, `[m, ...]`.
            chosen: the positions of the relabeled transitions, `[m]`.
            reward: `[n_step, n]`.
            terminated: `[n_step, n]`.
        """
        steps = len(reward)
        count = len(goals)
        # `achieved` holds all first steps, then all second steps, so the new goals are repeated as a block.
        desired = goals if steps == 1 else np.tile(goals, (steps, *[1] * (goals.ndim - 1)))
        info = np.empty(len(achieved), object)
        info.fill({})
        if self._compute_reward is None:
            raise RuntimeError("this Hindsight has no compute_reward yet: call attach(env)")
        rewards = self._compute_reward(achieved, desired, info)
        reward[:, chosen] = _check_shape("compute_reward", rewards, achieved).reshape(steps, count)
        if self._compute_terminated is not None:
            ended = self._compute_terminated(achieved, desired, info)
            if np.ndim(ended) == 0:  # gymnasium-robotics takes one transition
                ended = list(map(self._compute_terminated, achieved, desired, info))
            terminated[:, chosen] = _check_shape("compute_terminated", ended, achieved).reshape(steps, count)

    def _achieved(self, indices: Array) -> Array:
        """Return the goals of the next observations of transitions `[n]`, `[n, ...]` in the stored dtype."""
        storage = self.storage
        assert isinstance(storage.observation, Leaves) and isinstance(storage.final_observations, Leaves)
        successor = storage.successor.take(indices)
        # A successor of -1 - slot is a final observation. There, `clip` reads row 0, which is replaced below.
        goals: Array = storage.observation.tables["achieved_goal"].take(successor, axis=0, mode="clip")
        final_positions = (successor < 0).nonzero()[0]
        if final_positions.size:
            slots = -1 - successor[final_positions]
            goals[final_positions] = storage.final_observations.tables["achieved_goal"].take(slots, axis=0)
        return goals


def _rule(name: str, agent: Any, source: EnvSource | None) -> Rule | None:
    """Return the agent's function of this name, or else the environment's function."""
    owner = agent if source is None or hasattr(agent, name) else source.layer_with(name)
    return getattr(owner, name, None)


def _refuse_column(reward: Rule, space: Any) -> None:
    """Raise a ValueError for rewards `[n, 1]` before the first step, which may fail with `float(column)`."""
    rewards: Any = None
    goals: Any = None
    with suppress(Exception):  # `bind` checks the space, and zeros may be goals that never occur
        goals = np.zeros((2, *space["achieved_goal"].shape), space["achieved_goal"].dtype)
        rewards = np.asarray(reward(goals, goals, np.array([{}, {}], object)))
    if np.shape(rewards) == (2, 1):
        _check_shape("compute_reward", rewards, goals)


def _check_shape(name: str, values: Any, goals: Array) -> Array:
    """Return the result of the function `name` as an array, or raise a ValueError unless the shape is `[n]`."""
    array = np.asarray(values)
    if array.shape == (len(goals), 1):
        raise ValueError(
            f"{name} must return one number for each goal, of the shape {(len(goals),)}, got a column {array.shape}; "
            "return its values[:, 0]"
        )
    if array.shape != (len(goals),):
        raise ValueError(
            f"{name} must take a batch of goals: for goals of the shape {goals.shape} it must return the shape "
            f"{(len(goals),)}, got {array.shape}"
        )
    return array
