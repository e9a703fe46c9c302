"""Hindsight experience replay: what was learned, had what was reached been the goal.

Paper: Andrychowicz et al., "Hindsight experience replay" (2017), section 3.3 and, for the strategies, section 4.5.
Their k goals of hindsight for each true one are `ratio = k / (k + 1)`: k = 4 is 0.8.

Differs: transitions are relabelled when they are drawn, not when they are stored, so that each has another goal every
time; and the n rewards of an n-step return are all computed for the new goal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from noterl.envs.observation import GOAL_KEYS, is_goal_space
from noterl.envs.spaces import same_layout, show
from noterl.registry import register
from noterl.replay.columns import Array, Leaves
from noterl.replay.relabel import Relabel
from noterl.replay.returns import assembled, fold, follow
from noterl.replay.storage import Storage
from noterl.types import Batch
from noterl.utils.checks import check_number, check_word

if TYPE_CHECKING:
    from noterl.envs import EnvSource

STRATEGIES = ("future", "final", "episode")

Rule = Callable[[Any, Any, Any], Any]


@register
class Hindsight(Relabel):
    """Gives part of each batch another goal: one that was achieved in the same episode.

    For goal environments: their observations are a Dict of "observation", "achieved_goal" and "desired_goal". The new
    goal takes the desired one's place in `observation` and `next_observation`, and reward and termination are what
    `compute_reward(achieved_goal, desired_goal, info)` and `compute_terminated` say: each the agent's, or, where it
    defines none, the environment's own. They are called once for all rows of a batch: goals are arrays `[n, ...]`,
    `info` is `n` empty dicts (infos are not stored), and they return `[n]`; a `compute_terminated` that returns one
    bool instead is asked for each row. Where there is no `compute_terminated` transitions terminate as they were
    stored. What is achieved by a transition is its next observation's.

    Args:
        strategy: "future" takes what this transition or a later one of its episode achieved, "episode" any one, "final"
            the last; of an episode that still runs the last so far.
        ratio: the part of each batch that is relabelled, 0 to 1; where that is no whole number, the next one to it.

    Raises:
        ValueError: if an argument is not what it may be.

    Example:
        >>> import numpy as np
        >>> import noterl
        >>> from noterl.envs import BitFlip
        >>> from noterl.replay import Hindsight
        >>> env = BitFlip(4)
        >>> replay = noterl.Replay(100, relabel=Hindsight("final", ratio=1.0))
        >>> replay.relabel.attach(env)  # an agent does so with itself
        >>> replay.build(env.observation_space, env.action_space)
        >>> before, _ = env.reset(seed=0)
        >>> for action in (0, 1):
        ...     after, reward, terminated, truncated, _ = env.step(action)
        ...     row = replay.add(0, before, action, reward, after, terminated, truncated)
        ...     before = after
        >>> batch = replay.sample(1, 2, generator=np.random.default_rng(0), gamma=0.9)
        >>> bool((batch.observation["desired_goal"] == after["achieved_goal"]).all())
        True
        >>> sorted(zip(batch.index[0].tolist(), batch.reward[0].tolist()))[-1]
        (1, 0.0)
    """

    def __init__(self, strategy: str = "future", ratio: float = 0.8) -> None:
        self.strategy = check_word("strategy", strategy, STRATEGIES)
        self.ratio = check_number("ratio", ratio, low=0.0, high=1.0)
        self._compute_reward: Rule | None = None
        self._compute_terminated: Rule | None = None

    def attach(self, agent: Any, source: EnvSource | None = None) -> None:
        """Take the rules of an agent, or any object that has them, or else of where the agent trains.

        Raises:
            ValueError: if neither has `compute_reward`, or the environment's would not know the goals.
        """
        reward, terminated = (_rule(agent, name) for name in ("compute_reward", "compute_terminated"))
        if source is not None:
            reward = reward or _rule(source.layer_with("compute_reward"), "compute_reward")
            terminated = terminated or _rule(source.layer_with("compute_terminated"), "compute_terminated")
        if reward is None:
            raise ValueError(
                "relabel: Hindsight needs compute_reward(achieved_goal, desired_goal, info), and neither the agent nor "
                "the environment defines it"
            )
        self._compute_reward, self._compute_terminated = reward, terminated

    def bind(self, storage: Storage, observation_space: spaces.Space[Any]) -> None:
        """Belong to a storage of a goal environment's observations.

        Raises:
            ValueError: if it belongs to another one, or observations are of another kind.
        """
        if not isinstance(observation_space, spaces.Dict) or not is_goal_space(observation_space):
            raise ValueError(
                f"relabel: Hindsight takes observations that are a Dict of {', '.join(GOAL_KEYS)}, got "
                f"{show(observation_space)}"
            )
        achieved, desired = (observation_space[name] for name in GOAL_KEYS[1:])
        if isinstance(achieved, spaces.Dict) or not same_layout(achieved, desired):
            raise ValueError(
                f"relabel: Hindsight takes goals that are arrays, the achieved ones like the desired ones, got "
                f"{show(achieved)} and {show(desired)}"
            )
        super().bind(storage, observation_space)

    def draw(self, rows: Array, generator: np.random.Generator) -> dict[str, Array]:
        """Return for rows `[n]` the row whose achieved goal each takes, "goal" `[n]`; -1 where it keeps its own."""
        episodes, offset = self._bound().episodes, generator.random()
        # Of any run of rows the ratio, and of each row in its place the same chance: samplers may draw in an order.
        due = (np.arange(len(rows) + 1) * self.ratio + offset).astype(np.int64)
        chosen = (due[1:] != due[:-1]).nonzero()[0]
        goal, own = np.full(len(rows), -1), rows[chosen]
        after = episodes.after(own)
        if self.strategy == "future":
            after = (generator.random(len(own)) * (after + 1)).astype(np.int64)
        elif self.strategy == "episode":
            before = episodes.before(own)
            after = (generator.random(len(own)) * (before + after + 1)).astype(np.int64) - before
        goal[chosen] = episodes.shifted(own, after)
        return {"goal": goal}

    def gather(self, rows: Array, choices: Mapping[str, Array], gamma: float, n_step: int) -> Batch:
        """Return the batch of rows `[n]`, fields `[n, ...]`, with the new goals and what comes of them."""
        storage, goal = self._bound(), choices["goal"]
        chosen = (goal >= 0).nonzero()[0]
        steps = follow(storage, rows, n_step)
        reward, terminated = storage.reward.take(steps.rows), storage.terminated.take(steps.rows)
        both = self._achieved(np.concatenate([goal[chosen], steps.rows.take(chosen, axis=1).reshape(-1)]))
        goals = both[: len(chosen)]
        if len(chosen):
            self._judge(both[len(chosen) :], goals, chosen, reward, terminated)
        total, discount, last = fold(steps, reward, terminated, gamma)
        batch = assembled(storage, rows, last, total, discount)
        for seen in (batch.observation, batch.next_observation):
            seen["desired_goal"][chosen] = goals
        return batch

    def _judge(self, achieved: Array, goals: Array, chosen: Array, reward: Array, terminated: Array) -> None:
        """Write what achieving `[n_step * m, ...]` earns under goals `[m, ...]` into columns `chosen` of the last two.

        Goals are compared as precisely as they were stored, which is how the environment compares them.
        """
        steps, count = len(reward), len(goals)
        desired = goals if steps == 1 else np.tile(goals, (steps, *[1] * (goals.ndim - 1)))
        info = np.empty(len(achieved), object)
        info.fill({})
        if self._compute_reward is None:
            raise RuntimeError("this Hindsight knows no rewards: it belongs to no agent yet; call attach(env)")
        earned = self._compute_reward(achieved, desired, info)
        reward[:, chosen] = _of_each("compute_reward", earned, achieved).reshape(steps, count)
        if self._compute_terminated is not None:
            ended = self._compute_terminated(achieved, desired, info)
            if np.ndim(ended) == 0:  # that of gymnasium-robotics knows no batches
                ended = [self._compute_terminated(*each) for each in zip(achieved, desired, info, strict=True)]
            terminated[:, chosen] = _of_each("compute_terminated", ended, achieved).reshape(steps, count)

    def _achieved(self, rows: Array) -> Array:
        """Return the goals that the transitions of rows `[n]` achieved, `[n, ...]` as stored."""
        storage = self._bound()
        assert isinstance(storage.observation, Leaves) and isinstance(storage.apart, Leaves)
        successor = storage.successor.take(rows)
        goals: Array = storage.observation.tables["achieved_goal"].take(successor, axis=0, mode="clip")
        apart = (successor < 0).nonzero()[0]
        if apart.size:
            goals[apart] = storage.apart.tables["achieved_goal"].take(-1 - successor[apart], axis=0)
        return goals

    def _bound(self) -> Storage:
        if self.storage is None:
            raise RuntimeError("this Hindsight belongs to no memory yet: call Replay.build first")
        return self.storage


def _rule(owner: Any, name: str) -> Rule | None:
    rule = getattr(owner, name, None)
    return rule if callable(rule) else None


def _of_each(name: str, answer: Any, goals: Array) -> Array:
    array = np.asarray(answer)
    if array.shape != (len(goals),):
        raise ValueError(
            f"{name} must take the goals of many transitions at once: for goals of the shape {goals.shape} it must "
            f"return the shape {(len(goals),)}, got {array.shape}"
        )
    return array
