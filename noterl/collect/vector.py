"""Vector lanes: a gymnasium vector environment that steps all lanes together, in any autoreset mode.

- NEXT_STEP resets a lane in the step after the end of the episode and ignores the action. That step is not returned as
  a transition.
- SAME_STEP resets a lane at once and returns the final observation in `info["final_obs"]`.
- DISABLED resets a lane by `reset(options={"reset_mask": ...})`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from noterl import envs
from noterl.collect.action_log import ActionLog
from noterl.collect.base import Lanes
from noterl.collect.env_calls import EnvCall
from noterl.collect.info import info_of_lane
from noterl.collect.ledger import joint_kind, warn_restarted, warn_too_long
from noterl.envs import EnvSource
from noterl.envs.checking.checker import Checker
from noterl.envs.checking.vector import check_step
from noterl.envs.observation import ObservationEncoder, at, copy_observation
from noterl.envs.owners import is_owner, set_owner
from noterl.envs.rewards import UNCLIPPED_REWARD
from noterl.envs.wrappers.masks import mask_of_observation, masks_in_observation
from noterl.random import Generators
from noterl.types import InfoSpec, Transition
from noterl.utils.masks import ACTION_MASK


class VectorLanes(Lanes):
    """A vector environment; one tick steps all lanes.

    The episodes continue in the next `fit`, unless another agent has stepped the environment meanwhile. A restored run
    resets the environment with the same seed and repeats all actions since that reset. The restored run is exact,
    unless the budget ended within a step of all lanes: the transitions beyond the budget were discarded.

    Args:
        source: holds the vector environment.
        generators: the seed of the reset comes from the generator "environment/vector".
        info_spec: see `Lanes`.
        num_envs: the number of lanes, if the source makes a vector environment of any number.

    Raises:
        ValueError: if the environment's autoreset mode is not one of gymnasium's.
    """

    waiting: np.ndarray

    def __init__(
        self, source: EnvSource, generators: Generators, info_spec: InfoSpec | None = None, num_envs: int | None = None
    ) -> None:
        self._env = source.open_vector(num_envs)
        super().__init__(source, int(self._env.num_envs), info_spec)
        self.tick_width: int = self.num_envs
        self._mode = AutoresetMode(envs.autoreset_mode(self._env))
        self._before = (self.ledger.returns, self.ledger.lengths, self.ledger.info)  # before the last tick
        self._generators = generators
        self._checker = Checker(source.observation_space, warn_outside=True)
        self._has_masks = masks_in_observation(source.observation_space, source.action_space)
        self._received = 0  # steps of the vector environment whose observations were received
        self._encoder = ObservationEncoder(source.observation_space)
        self._batch_space = batch_space(source.observation_space, self.num_envs)
        self._log = ActionLog(source.action_space, self.num_envs)
        self._has_warned = False
        self._is_called = False  # whether `call` may have changed the environments
        self._make_idle()
        set_owner(self._env, self)

    def claim(self) -> None:
        """Take ownership of the environment; if another agent has stepped meanwhile, all episodes here restart."""
        if self._observations is not None and not is_owner(self._env, self):
            self._make_idle()
            warn_restarted("the vector environment", "another agent has stepped it", "Its episodes restart")
        set_owner(self._env, self)

    def restart(self) -> None:
        """Make all lanes idle; the environment stays open."""
        super().restart()
        self._make_idle()

    def _make_idle(self) -> None:
        """Make all lanes idle; the next reset uses a new seed."""
        self._observations: Any = None  # arrays [N, ...]: one, or a dict of them
        self.actions: Any = None
        self._extra = {}
        self.ledger.running = [False] * self.num_envs
        self._unreset = np.zeros(self.num_envs, bool)  # in DISABLED, lanes that must be reset
        self.waiting = np.zeros(self.num_envs, bool)
        self._discarded = False  # whether transitions of the last tick were discarded
        self._seed = 0

    def observations(self) -> np.ndarray:
        """Return the current observations, encoded for networks, `[N, ...]`."""
        assert self._observations is not None, "a reset comes first"
        return self._encoder(self._observations)

    def idle(self) -> list[int]:
        """Return the lanes whose next episode can start."""
        return [lane for lane, running in enumerate(self.ledger.running) if not running and not self.waiting[lane]]

    def reset(self, lane: int, number: int, step: int) -> None:
        """Start episode `number` in a lane; if the environment raises, all lanes become idle."""
        try:
            if self._observations is None:
                self._reset_all(int(self._generators("environment/vector").integers(2**31)))
            elif self._unreset[lane]:
                self._reset_lanes([lane])
            self._checker.observation(at(self._observations, lane), lane, step)
        except BaseException:
            self._make_idle()
            raise
        self.ledger.begin(lane, number)

    def _reset_all(self, seed: int) -> None:
        """Reset all environments with a seed; the actions since then are recorded."""
        self._seed = seed
        self._log.restart()
        if self._is_called:  # the actions alone then do not repeat the run
            self._log.stop()
        observations, info = self.guard.call(partial(self._env.reset, seed=seed))
        info = self._receive(observations, info)
        for lane in range(self.num_envs):
            self._reset_fields(lane, info)

    def _with_masks(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return `info` with the masks of the observations, if the observations hold masks."""
        if not self._has_masks or ACTION_MASK in info:
            return info
        info = {**info, ACTION_MASK: mask_of_observation(self._observations)}
        if "final_obs" in info:  # of lanes that were reset in the same step
            finals = (at(info["final_obs"], lane) for lane in range(self.num_envs))
            last = [None if final is None else mask_of_observation(final) for final in finals]
            ended = np.array([mask is not None for mask in last])
            masks = np.stack([info[ACTION_MASK][lane] if mask is None else mask for lane, mask in enumerate(last)])
            info["final_info"] = {**info.get("final_info", {}), ACTION_MASK: masks, f"_{ACTION_MASK}": ended}
        return info

    def _receive(self, observations: Any, info: dict[str, Any]) -> dict[str, Any]:
        """Set the observations `[N, ...]`, converted to the dtypes of the space, and return `info` with their masks."""
        self._received += 1
        # As in a `Checker`, whose checks take time: the first 1,000 observations, and then every hundredth.
        if self._received <= 1000 or self._received % 100 == 0:
            place = "observation of a vector environment"
            observations = self._checker.fit_dtype(observations, place, self._batch_space)
        self._observations = copy_observation(self._batch_space, observations)
        return self._with_masks(info)

    def _reset_fields(self, lane: int, info: Mapping[str, Any]) -> None:
        """Set the fields of `info` of a lane that was reset."""
        if self.info or self.fields.watched:
            self.fields.reset(lane, info_of_lane(info, lane, self.fields.names, self.num_envs, over=False))

    def _reset_lanes(self, lanes: Iterable[int]) -> None:
        """In DISABLED, reset lanes one after another."""
        for lane in lanes:
            options = {"reset_mask": np.arange(self.num_envs) == lane}
            observations, info = self.guard.call(partial(self._env.reset, options=options))
            info = self._receive(observations, info)
            self._unreset[lane] = False
            self._reset_fields(lane, info)

    def begin_round(self, actions: np.ndarray, extra: Mapping[str, np.ndarray] | None = None) -> None:
        """Set the next action of every lane; the environment ignores the actions of waiting lanes.

        `extra` holds further fields `[N, ...]` of these actions, which the transitions then have.
        """
        self.actions = actions
        self._extra = dict(extra or {})

    def tick(self, step: int) -> tuple[Transition, ...]:
        """Step all lanes and return the transitions of the lanes that were not waiting.

        If an exception is raised, all lanes become idle, because the memory lacks the step that the environment took.
        """
        try:
            transitions = self._step(step)
        except BaseException:
            self._make_idle()
            raise
        self.actions = None
        self._discarded = False
        return transitions

    def _step(self, step: int) -> tuple[Transition, ...]:
        """Step all lanes, check the results, and add the transitions to the ledger; see `tick`."""
        actions = self.actions
        before = self._observations
        alive = ~self.waiting
        rewards, terminated, truncated, info = self._advance(actions)
        transitions: list[Transition] = []
        for lane in np.flatnonzero(alive).tolist():
            # In SAME_STEP, the observations of a finished lane belong to the next episode.
            is_final = self._mode is AutoresetMode.SAME_STEP and (terminated[lane] or truncated[lane])
            last = at(info["final_obs"] if is_final else self._observations, lane)
            last = self._checker.observation(last, lane, step + len(transitions))
            if is_final:
                last = copy_observation(self.source.observation_space, last)
            self._checker.reward(rewards[lane], lane, step + len(transitions))
            ends = bool(terminated[lane]), bool(truncated[lane])
            extra = {name: values[lane] for name, values in self._extra.items()}
            extra |= self._step_fields(lane, info, *ends)
            gained = float(rewards[lane])
            transitions.append(Transition(lane, at(before, lane), actions[lane], gained, last, *ends, extra or None))
        for lane in np.flatnonzero(~alive).tolist():  # those that this step has reset
            self._reset_fields(lane, info)
        self._record(transitions, info)
        return tuple(transitions)

    def _step_fields(
        self, lane: int, info: Mapping[str, Any], terminated: bool, truncated: bool
    ) -> dict[str, np.ndarray]:
        """Return the fields of `info` before and after a lane's step, and set the fields of the current observation."""
        self.fields.check_step(info)
        if not self.info:
            return {}
        was_reset = self._mode is AutoresetMode.SAME_STEP and (terminated or truncated)
        of_lane = info_of_lane(info, lane, self.fields.names, self.num_envs, over=was_reset)
        fields = self.fields.step(lane, of_lane, terminated)
        if was_reset:
            self._reset_fields(lane, info)
        return fields

    def _record(self, transitions: list[Transition], info: dict[str, Any]) -> None:
        """Add the transitions of a step to the ledger, and keep the values from before for `discard`."""
        ledger = self.ledger
        same_step = self._mode is AutoresetMode.SAME_STEP
        is_clipped = UNCLIPPED_REWARD in info or UNCLIPPED_REWARD in info.get("final_info", ())
        info_before = [episode.copy() for episode in ledger.info] if ledger.reductions else ledger.info
        self._before = ledger.returns.copy(), ledger.lengths.copy(), info_before
        for transition in transitions:
            lane = transition.lane
            reward = transition.reward
            over = same_step and (transition.terminated or transition.truncated)
            # An info of all lanes may have the value beside `final_info`, as that of `Atari` does.
            for is_final in (False, True)[: 1 + over] if is_clipped else ():
                of_lane = info_of_lane(info, lane, (UNCLIPPED_REWARD,), self.num_envs, over=is_final)
                reward = float(of_lane.get(UNCLIPPED_REWARD, reward))
            if ledger.reductions:
                ledger.info[lane].add(info_of_lane(info, lane, ledger.reductions, self.num_envs, over=over))
            ledger.returns[lane] += reward
            ledger.lengths[lane] += 1

    def _advance(self, actions: np.ndarray) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Step the environment, record the actions, and set the observations and the lanes that need a reset.

        Returns:
            the rewards, the terminations, the truncations and the info.
        """
        # The environment may change the actions.
        observations, rewards, terminated, truncated, info = self.guard.call(self._env.step, actions.copy())
        if not self._log.append(actions) and not self._has_warned:
            self._has_warned = True
            warn_too_long("the run of the vector environment since its reset")
        over = check_step(self._mode.value, self.waiting, rewards, terminated, truncated, info)
        info = self._receive(observations, info)
        if self._mode is AutoresetMode.NEXT_STEP:
            self.waiting = over
        elif self._mode is AutoresetMode.DISABLED:
            self._unreset = over
        return rewards, terminated, truncated, info

    def discard(self, transitions: tuple[Transition, ...]) -> None:
        """Exclude the surplus transitions of the last tick from the ledger.

        Warn if the vector environment is the user's own: with `num_envs=`, the user has chosen the number of lanes.
        Surplus transitions do not count in the returns and lengths of the episodes. If a surplus transition ends an
        episode, the episode does not continue.
        """
        returns, lengths, info = self._before
        for transition in transitions:
            lane = transition.lane
            self.ledger.returns[lane] = returns[lane]
            self.ledger.lengths[lane] = lengths[lane]
            self.ledger.info[lane] = info[lane]
            if transition.terminated or transition.truncated:
                self.ledger.finish(lane)
        self._discarded = True
        if self.source.num_envs is not None:
            warnings.warn(
                f"the budget ended within a step of the vector environment: {len(transitions)} transitions of its "
                f"{self.num_envs} lanes were discarded. Use a SyncVectorEnv or num_envs= to avoid this.",
                RuntimeWarning,
                stacklevel=2,
            )

    def call(self, call: EnvCall) -> list[Any]:
        """Call a method of every environment, or read an attribute; return the results of the lanes.

        Raises:
            ValueError: if the vector environment has no method `call`.
        """
        if not callable(getattr(self._env, "call", None)):
            raise ValueError(f"{call}: the vector environment {self._env!r} has no method `call`")
        if isinstance(self._env.unwrapped, SyncVectorEnv):
            for env in self._env.unwrapped.envs:
                call.check_found(env)
        if call.args is not None:
            self._is_called = True
            self._log.stop()
        try:
            return list(self._env.call(call.name, *(call.args or ()), **call.kwargs))
        except Exception as error:
            error.add_note(f"raised in {call} of the vector environment")
            raise

    def get_state(self) -> dict[str, Any] | None:
        """Return the ledger, the seed of the reset, the actions since and the observations; None before a reset."""
        if self._observations is None:
            return None
        space = self.source.observation_space
        return {
            "ledger": self.ledger.get_state(),
            "lanes": [
                {"observation": copy_observation(space, at(self._observations, lane))} for lane in range(self.num_envs)
            ],
            "vector": {
                "mode": self._mode.value,
                "seed": self._seed,
                "actions": self._log.actions(),
                "unreset": self._unreset.copy(),
                "discarded": self._discarded,
                "info": self.fields.get_state(),
            },
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of `get_state`; if that fails, all episodes restart, with a warning."""
        if len(state["lanes"]) == self.num_envs:
            self.ledger.set_state(state["ledger"])
        elif self.source.maker is not None or self.source.functions is not None:
            return  # the user has chosen another number
        reason = self._restore(state)
        if reason is not None:
            self._make_idle()
            warn_restarted("the vector environment", reason, "Its episodes restart")
            return
        if self._discarded:
            warnings.warn(
                "the budget before the restored state ended within a step of the vector environment, and the surplus "
                "was discarded, so this run will differ from an uninterrupted one",
                RuntimeWarning,
                stacklevel=2,
            )

    def _restore(self, state: dict[str, Any]) -> str | None:
        """Repeat all actions since the reset; return the reason if that failed, else None."""
        saved = state.get("vector")
        lanes = state["lanes"]
        if saved is None:
            return f"the state is of {joint_kind(state) or 'scalar environments'}"
        if (len(lanes), saved["mode"]) != (self.num_envs, self._mode.value):
            return f"the state is of {len(lanes)} environments in the mode {saved['mode']}"
        if saved["actions"] is None:
            return "env_call may have changed it, or the actions since its reset exceed 64 MiB"
        try:
            self._reset_all(saved["seed"])
            for actions in saved["actions"]:
                self._reset_lanes(np.flatnonzero(self._unreset))
                self._advance(actions.astype(self.source.action_space.dtype))
            # In DISABLED, the lanes that were reset after the last action.
            self._reset_lanes(np.flatnonzero(self._unreset & ~saved["unreset"]))
            self.fields.set_state(saved["info"])
        except Exception as error:  # an environment that has changed since the state was saved may raise any error
            return f"{type(error).__name__}: {error}"
        self._discarded = saved["discarded"]
        expected = [lane_state["observation"] for lane_state in lanes]
        same = (envs.equal(at(self._observations, lane), expected[lane]) for lane in range(len(lanes)))
        return None if all(same) else "observations differ"
