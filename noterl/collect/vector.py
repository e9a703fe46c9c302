"""Vector lanes: one native vector environment of gymnasium, in any of its three autoreset modes.

Owns: what the modes mean. NEXT_STEP resets in the step after an episode's end, whose action is ignored and whose
transition is dead: it never leaves this file. SAME_STEP resets at once and hides the true last observation in
`info["final_obs"]`. DISABLED waits to be told, by `reset(options={"reset_mask": ...})`. And what becomes of the lanes
that were stepped beyond a budget.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from noterl.collect.ledger import Checker, Ledger, warn_afresh
from noterl.collect.parts import Parts
from noterl.envs.checking.vector import stepped_here
from noterl.envs.observation import View, at, own
from noterl.types import Transition

if TYPE_CHECKING:
    from noterl.envs import EnvSource
    from noterl.random import Generators


# Who stepped a vector environment last.
_steppers: WeakKeyDictionary[Any, ref[VectorLanes]] = WeakKeyDictionary()


class VectorLanes:
    """A native vector environment under the interface of `Lanes`; all lanes step in one tick.

    Its episodes go on in the next `fit`, unless another agent has stepped it in between. In a restored run they go on
    where it is a `SyncVectorEnv` without wrappers around it, and its environments can be brought back as those of
    `Lanes` can: each of their episodes has a seed of its own. All others start afresh, with a warning.

    A budget may end in the middle of a tick. What the lanes beyond it brought is kept, and is the next tick; updates
    that fall due in between are drawn without it, which is the one thing that two fits do otherwise than one.

    Args:
        source: of the vector environment.
        generators: the seed of the first reset comes from the one named "environment/vector"; those of such a
            `SyncVectorEnv` come from "environment/<lane>".

    Attributes:
        actions: of a tick that is not complete; None between ticks.
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
        self._over = np.zeros(self.num_envs, bool)  # lanes whose episode is over, and which were not reset since
        self.waiting = np.zeros(self.num_envs, bool)
        self._taken: Any = None  # the actions of the last tick
        self._left: tuple[Transition, ...] = ()  # what the last tick brought, and was not handed out
        self._before = (self.ledger.returns, self.ledger.lengths)  # as they were before the last tick
        base = stepped_here(self._env)
        self._parts = None if base is None else Parts(base, source, generators)
        self._stepping = nullcontext() if self._parts is None else self._parts
        self.claim()

    def claim(self) -> None:
        """Step from here on; all lanes start afresh, with a warning, if others have stepped the environment since."""
        last = _steppers.get(self._env.unwrapped)
        if self._observations is not None and (last is None or last() is not self):
            self._forget()
            warn_afresh("the vector environment", "another agent has stepped it")
        _steppers[self._env.unwrapped] = ref(self)

    def observations(self) -> np.ndarray:
        """Return what is seen of the present observations `[N, ...]`."""
        assert self._observations is not None, "a reset comes first"
        return self._view(self._observations)

    def idle(self) -> list[int]:
        """Return the lanes whose next episode can begin."""
        return [lane for lane, running in enumerate(self.ledger.running) if not running and not self.waiting[lane]]

    def reset(self, lane: int, number: int, step: int) -> None:
        """Begin episode `number` in a lane; whatever is raised leaves all lanes to be reset."""
        try:
            self._reset(lane)
            self._checker.observation(at(self._observations, lane), lane, step)
        except BaseException:
            self._forget()
            raise
        self.ledger.begin(lane, number)

    def _reset(self, lane: int) -> None:
        if self._observations is None:
            seed = None if self._parts else int(self._generators("environment/vector").integers(2**31))
            with self._stepping:
                observations, _ = self._env.reset(seed=seed)
            self._observations = own(self._batch_space, observations)
        elif self._over[lane]:  # NEXT_STEP and SAME_STEP have reset it themselves
            with self._stepping:
                observations, _ = self._env.reset(options={"reset_mask": np.arange(self.num_envs) == lane})
            _put(self._observations, lane, observations)
            self._over[lane] = False

    def begin_round(self, actions: np.ndarray) -> None:
        """Take one action for every lane; those of dead lanes are ignored by the environment."""
        self.actions = actions

    def tick(self, step: int) -> tuple[Transition, ...]:
        """Step all lanes and return the transitions of those that were alive; or return those that were left.

        Whatever is raised leaves all lanes to be reset, for the environments are ahead of what was stored.
        """
        left, self._left = self._left, ()
        try:
            transitions = left or self._step(step)
        except BaseException:
            self._forget()
            raise
        self._taken, self.actions = self.actions, None
        self._before = self.ledger.returns.copy(), self.ledger.lengths.copy()
        for transition in transitions:
            self.ledger.returns[transition.lane] += transition.reward
            self.ledger.lengths[transition.lane] += 1
        return transitions

    def _step(self, step: int) -> tuple[Transition, ...]:
        actions, before, alive = self.actions, self._observations, ~self.waiting
        if self._parts is not None:
            self._parts.note(actions, alive)
        with self._stepping:
            observations, rewards, terminated, truncated, info = self._env.step(actions.copy())  # as in `Lanes`
        after = own(self._batch_space, observations)
        over = alive & (np.asarray(terminated, bool) | np.asarray(truncated, bool))
        transitions: list[Transition] = []
        for lane in np.flatnonzero(alive).tolist():
            last = at(after, lane)
            if over[lane] and self._mode is AutoresetMode.SAME_STEP:
                last = own(self.source.observation_space, info["final_obs"][lane])
            self._checker.observation(last, lane, step + len(transitions))
            self._checker.reward(rewards[lane], lane, step + len(transitions))
            ends = bool(terminated[lane]), bool(truncated[lane])
            transitions.append(Transition(lane, at(before, lane), actions[lane], float(rewards[lane]), last, *ends))
        self._observations = after
        if self._mode is not AutoresetMode.SAME_STEP:
            self._over = over
        if self._mode is AutoresetMode.NEXT_STEP:
            self.waiting = over
        return tuple(transitions)

    def _forget(self) -> None:
        """Let all lanes be reset."""
        self._observations, self.actions, self._left = None, None, ()
        self.ledger.running = [False] * self.num_envs
        self._over, self.waiting = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)

    def put_off(self, surplus: tuple[Transition, ...]) -> None:
        """Note that the last of the tick's transitions were not stored; the next tick returns them."""
        returns, lengths = self._before
        for transition in surplus:
            lane = transition.lane
            self.ledger.returns[lane], self.ledger.lengths[lane] = returns[lane], lengths[lane]
        self._left, self.actions = surplus, self._taken

    def logs(self, lane: int) -> dict[str, float]:
        """Return what the logs of a lane's episode hold besides its return and length."""
        return {}

    def finish(self, lane: int) -> None:
        """Note that the lane's episode is over."""
        self.ledger.running[lane] = False

    def get_state(self) -> dict[str, Any] | None:
        """Return where the environments are; without the lanes' own states where they cannot be brought back.

        None if they are to be reset.
        """
        if self._observations is None:
            return None
        actions = None if self.actions is None else np.array(self.actions)
        state = {"ledger": self.ledger.get_state(), "actions": actions, "cursor": 0}
        if self._parts is None:
            return {**state, "lanes": [None] * self.num_envs, "vector": None}
        space, lanes = self.source.observation_space, self._parts.get_state()
        for lane, saved in enumerate(lanes):
            saved["observation"] = own(space, at(self._observations, lane))
        left = [{name: getattr(transition, name) for name in _LEFT} for transition in self._left]
        for said in left:
            said.update({name: own(space, said[name]) for name in ("observation", "next_observation")})
        return {**state, "lanes": lanes, "vector": {"mode": self._mode.value, "over": self._over.copy(), "left": left}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Bring the environments to where they were; where one does not get there, all start afresh, with a warning."""
        if len(state["lanes"]) == self.num_envs:
            self.ledger.set_state(state["ledger"])
        fault = self._resume(state)
        if fault is not None:
            self._forget()
            warn_afresh("the vector environment", fault)

    def _resume(self, state: dict[str, Any]) -> str | None:
        """Bring the environments to where they were; return why that failed, or None."""
        said, lanes = state.get("vector"), state["lanes"]
        if self._parts is None or said is None:
            return "of vector environments, only a SyncVectorEnv without wrappers around it can be"
        if (len(lanes), said["mode"]) != (self.num_envs, self._mode.value):
            return f"it was one of {len(lanes)} environments in the mode {said['mode']}"
        fault = self._parts.set_state(lanes, said["over"])
        if fault is not None:
            return fault
        self.actions = state["actions"]
        self._over = said["over"].copy()
        if self._mode is AutoresetMode.NEXT_STEP:
            self.waiting = self._over
        self._observations = _stacked([saved["observation"] for saved in lanes])
        self._left = tuple(Transition(action=self.actions[left["lane"]], **left) for left in said["left"])
        return None

    def close(self) -> None:
        """Close what was made here."""
        self.source.close()


# What is saved of a transition that was left; its action stands among those of the tick.
_LEFT = ("lane", "observation", "reward", "next_observation", "terminated", "truncated")


def _put(observations: Any, lane: int, source: Any) -> None:
    """Take one lane's observation from `source`; both are arrays `[N, ...]`, or dicts of them."""
    if isinstance(observations, dict):
        for name, part in observations.items():
            _put(part, lane, source[name])
    else:
        observations[lane] = source[lane]


def _stacked(observations: list[Any]) -> Any:
    """Return observations of lanes as arrays `[N, ...]`: one, or a dict of them."""
    if isinstance(observations[0], dict):
        return {name: _stacked([observation[name] for observation in observations]) for name in observations[0]}
    return np.stack(observations)
