"""`ScalarLanes`: N scalar environments, stepped one after another in this process.

A round is one step of every lane. The lanes step in turn, so a budget may end in the middle of a round; a later `fit`
continues there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl import envs
from noterl.collect.action_log import ActionLog
from noterl.collect.base import Lanes
from noterl.collect.env_calls import EnvCall
from noterl.collect.ledger import is_ahead, joint_kind, warn_restarted, warn_too_long
from noterl.envs import EnvSource
from noterl.envs.checking.checker import Checker
from noterl.envs.observation import ObservationEncoder, copy_observation, zeros
from noterl.envs.owners import is_owner, set_owner
from noterl.envs.rewards import unclipped
from noterl.heads import members, one_of
from noterl.types import InfoSpec, Transition


class ScalarLanes(Lanes):
    """N environments of this process; each episode is reset with a new seed.

    Args:
        source: makes the environments.
        num_envs: the number of lanes.
        generators: the seeds of a lane come from the generator "environment/<lane>".
        first: the number of the first lane, for the names of generators and for messages. Lane k of these is the lane
            `first + k` of the training; `first` is above 0 in worker processes.
        info_spec: see `Lanes`.

    Attributes:
        step_info: the `info` of the last step.
    """

    def __init__(
        self,
        source: EnvSource,
        num_envs: int,
        generators: Callable[[str], np.random.Generator],
        first: int = 0,
        info_spec: InfoSpec | None = None,
    ) -> None:
        super().__init__(source, num_envs, info_spec)
        self.first: int = first
        self._generators = generators
        self.environments: Sequence[Any] = [source.make(lane) for lane in range(num_envs)]
        self._steps = [environment.step for environment in self.environments]
        self._checker = Checker(source.observation_space, warn_outside=True)
        self._discrete = isinstance(source.action_space, spaces.Discrete)
        self._space = source.observation_space
        self._encoder = ObservationEncoder(source.observation_space)
        # The current observations; each is replaced, never changed in place. `_encoded` holds all of them, encoded.
        self._observations = [zeros(self._space)] * num_envs
        self._encoded = np.zeros((num_envs, *self._encoder.space.shape), self._encoder.space.dtype)
        self._seeds: list[int] = [0] * num_envs
        self._logs = [ActionLog(source.action_space) for _ in range(num_envs)]
        self._has_state: list[bool | None] = [None] * num_envs  # whether the environment restores itself; None: unknown
        self._is_called = [False] * num_envs  # whether `call` may have changed the environment
        self._has_warned = False
        self.step_info: Mapping[str, Any] = {}
        self.claim()

    def claim(self) -> None:
        """Take ownership of the environments; if another agent has stepped one meanwhile, the episode here restarts."""
        lost = []
        for lane, environment in enumerate(self.environments):
            if self.ledger.running[lane] and not is_owner(environment, self):
                self.ledger.finish(lane)
                lost.append(lane)
            set_owner(environment, self)
        if lost:
            warn_restarted(f"environments {lost}", "another agent has stepped them", "Their episodes restart")

    def observations(self) -> np.ndarray:
        """Return the current observations, encoded for networks, `[N, ...]`."""
        return self._encoded

    def reset(self, lane: int, number: int, step: int) -> None:
        """Start episode `number` in a lane, with a new seed."""
        seed = int(self._generators(f"environment/{self.first + lane}").integers(2**31))
        result = self.guard.call(partial(self.environments[lane].reset, seed=seed))
        observation, info = self._checker.reset(result, self.first + lane, step)
        self._set_observation(lane, observation)
        self.fields.reset(lane, info)
        self._seeds[lane] = seed
        self._logs[lane].restart()
        if self._has_state[lane] is None:
            self._has_state[lane] = envs.get_state(self.environments[lane]) is not None
        # The environment restores itself, or the actions alone do not repeat the episode.
        if self._has_state[lane] or self._is_called[lane]:
            self._logs[lane].stop()
        self.ledger.begin(lane, number)

    def begin_round(self, actions: np.ndarray, extra: Mapping[str, np.ndarray] | None = None) -> None:
        """Set the next action of every lane, and further fields `[N, ...]` that the transitions then have."""
        self.actions: Any = members(actions, self.source.action_space)
        self._extra = dict(extra or {})
        self.cursor = 0

    def tick(self, step: int) -> tuple[Transition, ...]:
        """Step the next lane of the round and return the transition; return () if the lane is idle.

        If the environment raises, the lane becomes idle; the other lanes are unchanged.
        """
        lane = self.cursor
        action = self.actions[self.cursor]
        self.cursor += 1
        if self.cursor == self.num_envs:
            self.actions = None
        ledger = self.ledger
        if not ledger.running[lane]:
            return ()
        # Until the step is complete: if the environment raises, the lane is idle.
        ledger.running[lane] = False
        env_action = action if self._discrete else action.copy()  # the environment may change it in place
        guard = self.guard
        try:  # without the call of `guard.call`, 0.1 µs per step faster
            guard.is_open = True
            result = self._steps[lane](env_action)
        finally:
            guard.is_open = False
        observation, reward, terminated, truncated, info = self._checker.step(result, self.first + lane, step)
        self.fields.check_step(info)
        if ledger.reductions:
            ledger.info[lane].add(info)
        self.step_info = info
        ledger.running[lane] = True
        if not self._logs[lane].append(action) and not self._has_warned:
            self._has_warned = True
            warn_too_long(f"the episode of environment {self.first + lane}")
        gained = float(reward)
        ledger.returns[lane] += unclipped(gained, info)
        ledger.lengths[lane] += 1
        before = self._observations[lane]
        self._set_observation(lane, observation)
        extra = self._further_fields(lane, info, bool(terminated)) if self._extra or self.info else None
        return (Transition(lane, before, action, gained, observation, bool(terminated), bool(truncated), extra),)

    def _further_fields(self, lane: int, info: Mapping[str, Any], terminated: bool) -> dict[str, Any]:
        """Return the fields of a lane's action, and the fields of `info` before and after the step; set the latter."""
        fields = {name: values[lane].copy() for name, values in self._extra.items()}
        return {**fields, **self.fields.step(lane, info, terminated)}

    def call(self, call: EnvCall) -> list[Any]:
        """Call a method of every environment, or read an attribute; return the results of the lanes.

        A resumed run repeats an episode in progress by the recorded actions. A method may change an environment, so
        that the actions alone no longer repeat the episodes, and actions are no longer recorded.

        Raises:
            BadCallError: if an environment has no such method or attribute; then nothing is called.
            Exception: of the environment, with a note that names the lane. Later environments are then not called.
        """
        # Before the first call, so that a wrong name changes no environment.
        for environment in self.environments:
            call.check_found(environment)
        results = []
        for lane, environment in enumerate(self.environments):
            if call.args is not None:
                self._is_called[lane] = True
                self._logs[lane].stop()
            try:
                results.append(call.run(environment))
            except Exception as error:
                error.add_note(f"raised in {call} of environment {self.first + lane}")
                raise
        return results

    def _set_observation(self, lane: int, observation: Any) -> None:
        """Set the current observation of a lane, as a copy and encoded for networks."""
        if self._encoder.is_identity:
            self._encoded[lane] = observation
            self._observations[lane] = self._encoded[lane].copy()
        else:
            self._encoder.write(observation, self._encoded[lane])
            self._observations[lane] = copy_observation(self._space, observation)

    def get_state(self) -> dict[str, Any]:
        """Return the ledger, the round in progress, and the state of each lane.

        The state of a lane is the seed of the last reset, the actions since, the current observation, and the state
        that the environment itself returns. The state is also returned if the episode has ended, because some
        environments keep state across episodes.
        """
        lanes = [
            {
                "seed": self._seeds[lane],
                "actions": self._logs[lane].actions(),
                "environment": self._environment_state(lane),
                "observation": self._observations[lane],
            }
            for lane in range(self.num_envs)
        ]
        ledger = self.ledger.get_state()
        return {"lanes": lanes, "ledger": ledger, **self.round_state(), "info": self.fields.get_state()}

    def _environment_state(self, lane: int) -> dict[str, Any] | None:
        """Return the state that the environment itself returns; None before the first episode, or if there is none."""
        environment = self.environments[lane]
        # If another agent has stepped it meanwhile, its state is not that of this lane's episode.
        is_own = self.ledger.numbers[lane] >= 0 and is_owner(environment, self)
        return envs.get_state(environment) if is_own else None

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of `get_state`; an episode that cannot be restored restarts, with a warning.

        A state of another number of lanes is ignored. No warning is given if the user chose the number (`num_envs`).
        """
        lanes = state["lanes"]
        origin = joint_kind(state)
        if origin is None and len(lanes) != self.num_envs and self.source.num_envs is not None:
            origin = f"{len(lanes)} environments"
        if origin is not None:
            warn_restarted("the environments", f"the state is of {origin}", "Their episodes restart")
        elif len(lanes) == self.num_envs and is_ahead(state):
            warn_restarted("the environments", "their workers had collected further", "Their episodes restart")
        elif len(lanes) == self.num_envs:
            self.ledger.set_state(state["ledger"])
            self.actions = None if state["actions"] is None else members(state["actions"], self.source.action_space)
            self.cursor = state["cursor"]
            self._extra = {name: values.copy() for name, values in state["extra"].items()}
            self.fields.set_state(state["info"])
            for lane, saved in enumerate(lanes):
                self._restore_lane(lane, saved)

    def _restore_lane(self, lane: int, saved: dict[str, Any]) -> None:
        """Restore a lane; if the environment cannot be restored, the lane becomes idle, with a warning."""
        self._set_observation(lane, saved["observation"])
        self._seeds[lane] = saved["seed"]
        if saved["actions"] is None:
            self._logs[lane].stop()
        else:
            self._logs[lane].restart(saved["actions"])
        if self.ledger.numbers[lane] < 0:
            return
        try:
            reason = self._restore_environment(lane, saved)
        except Exception as error:  # an environment that has changed since the state was saved may raise any error
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            self.ledger.running[lane] = False
            warn_restarted(f"environment {self.first + lane}", reason)

    def _restore_environment(self, lane: int, saved: dict[str, Any]) -> str | None:
        """Restore the environment's own state, or repeat the actions; return the reason if that failed, else None."""
        environment = self.environments[lane]
        if saved["environment"] is not None:
            envs.set_state(environment, saved["environment"])
            return None
        if saved["actions"] is None:
            return "its state is not stored, and env_call may have changed it, or its actions exceed 64 MiB"
        actions = (one_of(saved["actions"], k, self.source.action_space) for k in range(len(saved["actions"])))
        observation = envs.replay(environment, saved["seed"], actions, over=not self.ledger.running[lane])
        return None if envs.equal(observation, saved["observation"]) else "observations differ"
