"""Vector lanes: one native vector environment of gymnasium, in any of its three autoreset modes.

Owns: what the modes mean. NEXT_STEP resets in the step after an episode's end, whose action is ignored and whose
transition is dead: it never leaves this file. SAME_STEP resets at once and hides the true last observation in
`info["final_obs"]`. DISABLED waits to be told, by `reset(options={"reset_mask": ...})`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from noterl.collect.common import Checker, Ledger
from noterl.observation import View, at, own
from noterl.types import Transition

if TYPE_CHECKING:
    from noterl.envs import EnvSource
    from noterl.random import Generators


class VectorLanes:
    """A native vector environment under the interface of `Lanes`; all lanes step in one tick.

    Its episodes cannot be brought back: every `fit` resets it.

    Args:
        source: of the vector environment.
        generators: the seed of the first reset comes from the one named "environment/vector".

    Attributes:
        waiting: lanes `[N]` whose next step is dead: the environment resets them in it.

    Raises:
        ValueError: naming `env`, if the environment says a mode that gymnasium does not have.
    """

    native = True

    def __init__(self, source: EnvSource, generators: Generators) -> None:
        self.source, self._env = source, source.open_vector()
        self.num_envs = int(self._env.num_envs)
        mode = self._env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        try:
            self._mode = AutoresetMode(mode)
        except ValueError as error:
            raise ValueError(f"env: metadata['autoreset_mode'] must be one of gymnasium's, got {mode!r}") from error
        self.ledger = Ledger(self.num_envs)
        self.actions: Any = None
        self._generators = generators
        self._checker = Checker(source.observation_space)
        self._view = View(source.observation_space)
        self._batch_space = batch_space(source.observation_space, self.num_envs)
        self._observations: Any = None  # arrays [N, ...]: one, or a dict of them
        self.waiting = np.zeros(self.num_envs, bool)
        self._before = (self.ledger.returns, self.ledger.lengths)  # as they were before the last tick

    def observations(self) -> np.ndarray:
        """Return what is seen of the present observations `[N, ...]`."""
        assert self._observations is not None, "a reset comes first"
        return self._view(self._observations)

    def idle(self) -> list[int]:
        """Return the lanes whose next episode can begin."""
        return [lane for lane, running in enumerate(self.ledger.running) if not running and not self.waiting[lane]]

    def reset(self, lane: int, number: int, step: int) -> None:
        """Begin episode `number` in a lane."""
        if self._observations is None:
            seed = int(self._generators("environment/vector").integers(2**31))
            observations, _ = self._env.reset(seed=seed)
            self._observations = own(self._batch_space, observations)
        elif self._mode is AutoresetMode.DISABLED and self.ledger.numbers[lane] >= 0:
            mask = np.arange(self.num_envs) == lane
            observations, _ = self._env.reset(options={"reset_mask": mask})
            _put(self._observations, lane, observations)
        self._checker.observation(at(self._observations, lane), lane, step)
        self.ledger.begin(lane, number)

    def begin_round(self, actions: np.ndarray) -> None:
        """Take one action for every lane; those of dead lanes are ignored by the environment."""
        self.actions = actions

    def tick(self, step: int) -> tuple[Transition, ...]:
        """Step all lanes and return the transitions of those that were alive."""
        actions, self.actions = self.actions, None
        before = self._observations
        observations, rewards, terminated, truncated, info = self._env.step(actions)
        after = own(self._batch_space, observations)
        alive = ~self.waiting
        self._before = self.ledger.returns.copy(), self.ledger.lengths.copy()
        over = alive & (np.asarray(terminated, bool) | np.asarray(truncated, bool))
        transitions: list[Transition] = []
        for lane in np.flatnonzero(alive).tolist():
            last = at(after, lane)
            if over[lane] and self._mode is AutoresetMode.SAME_STEP:
                last = own(self.source.observation_space, info["final_obs"][lane])
            self._check(lane, last, rewards[lane], step + len(transitions))
            self.ledger.returns[lane] += float(rewards[lane])
            self.ledger.lengths[lane] += 1
            transitions.append(
                Transition(
                    lane,
                    at(before, lane),
                    actions[lane],
                    float(rewards[lane]),
                    last,
                    bool(terminated[lane]),
                    bool(truncated[lane]),
                )
            )
        self._observations = after
        self.waiting = over if self._mode is AutoresetMode.NEXT_STEP else np.zeros_like(over)
        return tuple(transitions)

    def _check(self, lane: int, observation: Any, reward: Any, step: int) -> None:
        try:
            self._checker.observation(observation, lane, step)
            self._checker.reward(reward, lane, step)
        except ValueError:
            self._observations = None  # the environments are ahead of what was stored: all start afresh
            self.ledger.running = [False] * self.num_envs
            raise

    def discard(self, lane: int) -> None:
        """Note that the lane's last transition is not stored."""
        returns, lengths = self._before
        self.ledger.returns[lane], self.ledger.lengths[lane] = returns[lane], lengths[lane]

    def logs(self, lane: int) -> dict[str, float]:
        """Return what the logs of a lane's episode hold besides its return and length."""
        return {}

    def finish(self, lane: int) -> None:
        """Note that the lane's episode is over."""
        self.ledger.running[lane] = False

    def get_state(self) -> None:
        """Return None: a vector environment cannot say where its episodes are."""

    def close(self) -> None:
        """Close what was made here."""
        self.source.close()


def _put(observations: Any, lane: int, source: Any) -> None:
    """Take one lane's observation from `source`; both are arrays `[N, ...]`, or dicts of them."""
    if isinstance(observations, dict):
        for name, part in observations.items():
            _put(part, lane, source[name])
    else:
        observations[lane] = source[lane]
