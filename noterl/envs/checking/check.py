"""`check`: find the faults of an environment.

An error is a fault that ends training or makes the results wrong. Seeded runs must repeat, episodes must be restorable,
and a vector environment must follow the declared autoreset mode. `gymnasium.utils.env_checker.check_env` checks the
remaining rules of gymnasium, such as types and signatures.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import SyncVectorEnv, VectorEnv

from noterl.envs.checking.checker import Checker
from noterl.envs.checking.report import Report
from noterl.envs.checking.vector import DIFFERS, REPEATED_STEPS, check_vector, difference
from noterl.envs.ends import InvalidStepError
from noterl.envs.making import Env, as_env, name_of, vector_builder
from noterl.envs.snapshots import get_state, has_state_methods, set_state
from noterl.envs.source import open_env
from noterl.envs.sources.base import EnvSource
from noterl.envs.sources.scalar import ScalarSource
from noterl.envs.spaces import find_unsupported, show
from noterl.utils.checks import check_int
from noterl.utils.masks import ACTION_MASK, part_sizes, read_mask

# Shorter episodes often have equal lengths by chance or by design.
_SUSPICIOUS_LENGTH = 50

# The result of a reset or step: observation, reward, terminated, truncated
_Moment = tuple[Any, Any, Any, Any]


def check(env: Any, *, episodes: int = 3, steps: int = 1000, seed: int = 0) -> Report:
    """Play some episodes with random actions and report the faults of an environment.

    Args:
        env: anything that `resolve` accepts, except a pair of spaces and an `EnvSource`. An environment object is
            stepped itself and may be left in the middle of an episode. Of a `SyncVectorEnv`, the first environment is
            checked, because these environments run as scalar lanes.
        episodes: the number of episodes; not used for a vector environment that steps the lanes together.
        steps: the largest number of steps of one episode; of all lanes together for a vector environment. Actions have
            the types that `fit` passes, such as a Python int for a Discrete space, and are legal.
        seed: the seed of the first episode and of the random actions.

    Returns:
        A report to print. `report.ok` is False if there is an error; the first error ends the check.

    Raises:
        ValueError: if `env` is not an environment, or if a number is too small. Exceptions of the environment itself
            are reported instead.

    Example:
    >>> report = check("CartPole-v1")
    >>> report.ok, report.warnings, report.resumable
    (True, [], 'replay')
    """
    for name, value, least in (("episodes", episodes, 1), ("steps", steps, 1), ("seed", seed, 0)):
        check_int(name, value, least=least)
    if isinstance(env, EnvSource):
        raise ValueError("env must be an environment, got an EnvSource")
    spaces, _, opened, build, owned = open_env(env)
    if opened is None:
        raise ValueError(f"env must be an environment, got {show(env)}")
    report = Report(name_of(opened))
    try:
        if type(opened) is SyncVectorEnv:
            source = ScalarSource(*spaces, env=as_env(opened.envs[0]), build=vector_builder(opened))
            _Examiner(source, report, owned=owned).run(episodes, steps, seed)
        elif isinstance(opened, VectorEnv):
            check_vector(opened, report, steps, seed)
        else:
            source = ScalarSource(*spaces, env=opened, build=build, owned=owned)
            _Examiner(source, report, owned=owned).run(episodes, steps, seed)
    except Exception as error:  # the environment may raise any error
        report.error(str(error) if isinstance(error, InvalidStepError) else f"{type(error).__name__}: {error}")
    report.place = ""
    if owned:
        opened.close()
    return report


class _Examiner:
    """Checks one scalar environment; each call of `check` makes one.

    Args:
        source: makes the environment, as lane 0, and a second one.
        report: receives the findings.
        owned: whether `check` made the environment.
    """

    def __init__(self, source: EnvSource, report: Report, *, owned: bool = True) -> None:
        self._source = source
        self._owned = owned
        self._report = report
        self._env = source.make()
        self._mask: Any = None  # the legal actions of the current step; None if the environment does not report them
        self._checker = Checker(source.observation_space, warn_outside=True, warn=report.warn)

    def run(self, episodes: int, steps: int, seed: int) -> None:
        """Play episodes, then repeat one, then restore one from a saved state if the environment has the methods."""
        report = self._report
        for text in self._source.find_statistics():
            report.warn(text)
        for text in find_unsupported(self._source.observation_space, self._source.action_space):
            report.error(text)
        # A copy: sampling from the environment's own space would advance its generator.
        action_space = copy.deepcopy(self._source.action_space)
        action_space.seed(seed)
        self._play([[action_space.sample() for _ in range(steps)] for _ in range(episodes)], seed)
        self._check_exactness([action_space.sample() for _ in range(min(steps, REPEATED_STEPS))], seed)

    def _play(self, actions: list[list[Any]], seed: int) -> None:
        """Play an episode with each list of actions; report missing ends, and ends that look like a time limit.

        The first episode has the seed `seed`, the second one `seed + 1`, and so on.
        """
        report = self._report
        endings = []  # of each episode that ended, the steps, and whether it was terminated
        for episode, episode_actions in enumerate(actions):
            moments = self._run(self._env, episode_actions, seed + episode, f"episode {episode}")
            report.steps += len(moments) - 1  # the first moment is the reset
            if _is_over(moments[-1]):
                report.episodes += 1
                endings.append((len(moments) - 1, bool(moments[-1][2])))
        report.place = ""  # a warning about all episodes names no step
        if not endings:
            report.warn(
                f"no episode ended within {len(actions[0])} steps; if none ever does, set a limit "
                "(gymnasium.wrappers.TimeLimit)"
            )
        elif len(endings) >= 3 and set(endings) == {(endings[0][0], True)} and endings[0][0] >= _SUSPICIOUS_LENGTH:
            report.warn(
                f"every episode terminated after exactly {endings[0][0]} steps; if that is a time limit, return it as "
                "truncated, or values are learned as if nothing came after it"
            )

    def _run(self, env: Env, actions: list[Any], seed: int, name: str = "a repeated episode") -> list[_Moment]:
        """Reset and step until the episode or the actions end, and return copies of all results."""
        self._report.place = f"{name}, reset"
        result: Any = env.reset(seed=seed)
        _, info = self._checker.reset(result, 0, 0)
        self._read_mask(info)
        # Copies, because an environment may change and return the same array in each step.
        return [copy.deepcopy((result[0], 0.0, False, False)), *self._steps(env, actions, name)]

    def _steps(self, env: Env, actions: list[Any], name: str) -> list[_Moment]:
        """Step until the episode or the actions end, and return copies of all results."""
        moments: list[_Moment] = []
        for number, action in enumerate(actions, 1):
            self._report.place = f"{name}, step {number}"
            # A copy, because an environment may change its action.
            result: Any = env.step(copy.deepcopy(self._as_fit_passes(action)))
            *_, terminated, _, info = self._checker.step(result, 0, number)
            self._read_mask(info, bool(terminated))
            moments.append(copy.deepcopy(tuple(result[:4])))
            if _is_over(result):
                break
        return moments

    def _read_mask(self, info: Mapping[str, Any], terminated: bool = False) -> None:
        space = self._source.action_space
        is_masked = ACTION_MASK in info and part_sizes(space)
        self._mask = read_mask(info[ACTION_MASK], space, terminated=terminated) if is_masked else None

    def _as_fit_passes(self, action: Any) -> Any:
        """Return an action as `fit` passes it; an illegal one is replaced by a legal one, the same in repeated runs."""
        space: Any = self._source.action_space
        if self._mask is not None:
            choices = np.atleast_1d(action).reshape(-1)
            masks = np.split(self._mask, np.cumsum(part_sizes(space))[:-1])
            legal = [
                choice if mask[choice] else np.flatnonzero(mask)[choice % mask.sum()]
                for choice, mask in zip(choices, masks, strict=True)
            ]
            action = np.array(legal, space.dtype).reshape(space.shape)
        return int(action) if isinstance(space, Discrete) else action

    def _check_exactness(self, actions: list[Any], seed: int) -> None:
        """Repeat an episode, also in a second environment, and restore a saved state; report what differs."""
        report = self._report
        first = self._run(self._env, actions, seed)
        # Only half of the actions, so that the next reset comes in the middle of an episode.
        self._run(self._env, actions[: max(1, len(first) // 2)], seed)
        step = difference(first, self._run(self._env, actions, seed))
        # A second instance shows state that outlives `reset`, such as a counter of the class.
        second: Env | None = None
        try:
            second = self._source.make_evaluation()
        except ValueError:  # none can be made of an object that the user passed
            if self._owned:
                raise
        report.place = ""
        if step is not None:
            report.warn(f"{DIFFERS} from step {step} on (0 is the reset): not all randomness is seeded")
        elif second is not None and (step := difference(first, self._run(second, actions, seed))) is not None:
            report.place = ""
            report.warn(
                f"a second instance with the same seed and actions differs from step {step} on: something outlives "
                "reset, or is random when the environment is made"
            )
        else:
            report.resumable = "replay"
        if has_state_methods(self._env):
            report.resumable = None
            self._check_state(self._env if second is None else second, actions[: len(first) - 1], seed)
        if second is not None:
            second.close()

    def _check_state(self, other: Env, actions: list[Any], seed: int) -> None:
        """Save the state in the middle of an episode, restore it in `other`, and compare the rest of both episodes."""
        report = self._report
        half = len(actions) // 2
        self._run(self._env, actions[:half], seed)
        report.place = "get_state or set_state"
        state = get_state(self._env)
        if state is None:
            return report.warn(
                "the state cannot be saved, so episodes are not restored exactly: it has values other than numbers, "
                "text, arrays, generators, lists and dicts, or a wrapper around it has no get_state and set_state"
            )
        # The mask belongs to the state: the restored episode continues with the same legal actions.
        mask = self._mask
        expected = self._steps(self._env, actions[half:], "the rest of an episode")
        report.place = "get_state or set_state"
        set_state(other, state)
        self._mask = mask
        step = difference(expected, self._steps(other, actions[half:], "the rest of a restored episode"))
        if step is not None:
            return report.error(f"set_state does not restore the state of get_state: step {step + 1} after it differs")
        report.resumable = "state"
        return None


def _is_over(moment: Any) -> bool:
    return bool(moment[2] or moment[3])
