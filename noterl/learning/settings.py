"""Checking what `compile` and `fit` are given, before anything is done."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from noterl.algorithm import Algorithm
from noterl.callback import Budget, Callback, CallbackList
from noterl.heads import Head
from noterl.learning import optimizers
from noterl.learning.schedule import UpdateSchedule
from noterl.noise import NoiseProcess
from noterl.policies import Policy
from noterl.replay import Replay
from noterl.replay.claiming import claim
from noterl.utils.checks import check_int_or_word, check_positive
from noterl.utils.console import can_show_progress_bar

if TYPE_CHECKING:
    from noterl.agent import Agent
    from noterl.algorithm import Defaults


class Setup:
    """The parts that `compile` settles: the algorithm's defaults, with what the user gave in their place.

    Args:
        agent: whose defaults, optimizers and kind of memory count.
        head: of the agent, bound to the action space.
        arguments: what `compile` was given, by name.

    Raises:
        ValueError: naming the argument that is not what it may be.
    """

    def __init__(self, agent: Agent, head: Head, arguments: dict[str, Any]) -> None:
        """Check everything; nothing of the agent is touched."""
        _check_declared(agent)
        defaults = agent.defaults()
        self.arguments = arguments
        self.policy = _policy(arguments, defaults.policy, head)
        self.noise = _noise(arguments, defaults.noise, head)
        _check_explores(head, self.policy, self.noise)
        self.replay: Replay | None = None
        if agent.memory == "replay":
            self.replay, self.schedule = _from_replay(arguments, defaults)
        else:
            self.replay, self.schedule = _from_rollouts(arguments, defaults, agent.replays_rollouts)
        self.jit_compile = arguments.get("jit_compile", "auto")
        if not isinstance(self.jit_compile, bool | str) or self.jit_compile not in ("auto", True, False):
            raise ValueError(f"jit_compile must be 'auto', True or False, got {self.jit_compile!r}")
        size = arguments.get("steps_per_execution", "auto")
        self.steps_per_execution = check_int_or_word("steps_per_execution", size, "auto")
        optimizer = arguments.get("optimizer", defaults.optimizer)
        self.optimizers = optimizers.resolve(optimizer, agent.optimizer_names, defaults.learning_rate)

    def claim(self, agent: Agent) -> None:
        """Let the memory be the agent's; nothing else is refused after it."""
        if self.replay is not None:
            claim(self.replay, agent)


def _check_declared(agent: Agent) -> None:
    """Raise a ValueError if what the agent's class says of itself is not what it may be."""
    name, names, spec = type(agent).__name__, agent.optimizer_names, agent.random_spec
    words = isinstance(names, tuple | list) and all(isinstance(each, str) for each in names)
    if not words or not names or len(set(names)) < len(names):
        raise ValueError(
            f'optimizer_names of {name} must be different names such as ("actor", "critic"), got {names!r}'
        )
    if len(names) > 1 and type(agent).update is Algorithm.update:
        raise ValueError(
            f"optimizer_names of {name} must be one name unless {name} defines update: its loss is minimized by the "
            f"first of them alone, got {names!r}"
        )
    if agent.extra_spec and agent.memory == "replay":
        raise ValueError(
            f"extra_spec of {name} names fields of rollouts, which `prepare` returns; a replay memory stores what the "
            f"environment gives, and random numbers for an update are those of random_spec; got {agent.extra_spec!r}"
        )
    pairs = isinstance(agent.extra_spec, Mapping) and all(
        isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], tuple) for each in agent.extra_spec.values()
    )
    if not pairs:
        raise ValueError(f"extra_spec of {name} must be a dict of name -> (shape, dtype), got {agent.extra_spec!r}")
    if not isinstance(spec, Mapping):
        raise ValueError(f"random_spec of {name} must be a dict of name -> (shape, distribution), got {spec!r}")


_SCHEDULED = ("batch_size", "learning_starts", "update_every", "updates", "target_update")


def _from_replay(arguments: dict[str, Any], defaults: Defaults) -> tuple[Replay, UpdateSchedule]:
    replay = arguments["replay"] if "replay" in arguments else Replay(defaults.capacity)
    if not isinstance(replay, Replay):
        raise ValueError(f"replay must be a noterl.Replay, got {replay!r}")
    schedule = UpdateSchedule(**{name: arguments.get(name, getattr(defaults, name)) for name in _SCHEDULED})
    if isinstance(schedule.batch_size, str):
        raise ValueError("batch_size must be an int for an agent that learns from a replay memory, got 'rollout'")
    if schedule.batch_size > replay.capacity:
        raise ValueError(
            f"batch_size must be at most the capacity of the replay memory, {replay.capacity}, "
            f"got {schedule.batch_size}"
        )
    return replay, schedule


def _from_rollouts(
    arguments: dict[str, Any], defaults: Defaults, replays: bool
) -> tuple[Replay | None, UpdateSchedule]:
    replay = arguments.get("replay")
    if replay is not None and replays and not isinstance(replay, Replay):
        raise ValueError(f"replay must be a noterl.Replay, got {replay!r}")
    for name in ("replay", *_SCHEDULED[1:]):
        if name in arguments and not (name == "replay" and replays):
            raise ValueError(
                f"{name} must not be given to an agent that learns from rollouts: it learns from each one when it is "
                f"complete, in `epochs` passes, and then forgets it (`replays_rollouts` says whether its class takes a "
                f"replay memory); got {arguments[name]!r}"
            )
    size = arguments.get("batch_size", defaults.batch_size)
    return replay, UpdateSchedule(batch_size=size, learning_starts=0, update_every=1, updates=1, target_update=None)


def _policy(arguments: dict[str, Any], default: Policy | None, head: Head) -> Policy | None:
    policy = arguments.get("policy", default)
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        raise ValueError(f"policy must be one of noterl.policies, got {policy!r}")
    if not head.acts_on:
        raise ValueError(
            f"policy must not be given: the head {type(head).__name__} {_exploration(head)}; got {policy!r}"
        )
    if policy.acts_on not in head.acts_on:
        raise ValueError(
            f"policy {type(policy).__name__} acts on {policy.acts_on}, but the head {type(head).__name__} gives "
            f"{' or '.join(head.acts_on)}"
        )
    return policy


def _noise(arguments: dict[str, Any], default: NoiseProcess | None, head: Head) -> NoiseProcess | None:
    noise = arguments.get("noise", default)
    if noise is None:
        return None
    if not isinstance(noise, NoiseProcess):
        raise ValueError(f"noise must be one of noterl.noise, got {noise!r}")
    if not head.takes_noise:
        raise ValueError(f"noise must not be given: the head {type(head).__name__} {_exploration(head)}; got {noise!r}")
    size = head.noise_size
    if noise.size != size:
        raise ValueError(f"noise must be of the size of an action, {size}, got {noise!r} of the size {noise.size}")
    return noise


def _check_explores(head: Head, policy: Policy | None, noise: NoiseProcess | None) -> None:
    if policy is None and noise is None and not head.samples:
        name = "noise" if head.takes_noise else "policy"
        raise ValueError(
            f"{name} must be given, one of noterl.{'noise' if head.takes_noise else 'policies'}: the head "
            f"{type(head).__name__} {_exploration(head)}, and {name} is None"
        )


def _exploration(head: Head) -> str:
    """Say how a head explores."""
    if head.takes_noise:
        return "explores by a noise"
    return f"explores by a policy on {' or '.join(head.acts_on)}" if head.acts_on else "draws from its distribution"


def checked_fit_arguments(
    env: Any, episodes: Any, steps: Any, num_envs: Any, verbose: Any, log_every: Any, callbacks: CallbackList
) -> int:
    """Check what `fit` is given and return the verbosity as a number.

    Raises:
        ValueError: naming the argument that is not what it may be.
    """
    if isinstance(env, numbers.Number):
        raise ValueError(
            f"env, the first argument of fit, must be an environment, got {env!r}: write fit(episodes={env})"
        )
    for name, value in (("episodes", episodes), ("steps", steps), ("num_envs", num_envs), ("log_every", log_every)):
        if value is not None:
            check_positive(name, value)
    if episodes is None and steps is None and not callbacks.stops_training:
        raise ValueError("episodes or steps must be given, or a callback that stops training, such as EarlyStopping")
    if isinstance(verbose, str) and verbose == "auto":
        return 1 if can_show_progress_bar() else 2
    if not isinstance(verbose, numbers.Integral) or isinstance(verbose, bool) or verbose not in (0, 1, 2):
        raise ValueError(f"verbose must be 'auto', 0, 1 or 2, got {verbose!r}")
    return int(verbose)


def budget_of(agent: Agent, episodes: int | None, steps: int | None) -> Budget:
    """Return where a `fit` with these arguments ends."""
    return Budget(
        math.inf if episodes is None else agent.episodes + episodes, math.inf if steps is None else agent.steps + steps
    )


def loggers(verbose: int, log_every: int | None, episodes: int | None, steps: int | None) -> list[Callback]:
    """Return the callbacks that show progress at this verbosity."""
    # The catalogue builds on the core, so the core imports it only here, when it is used.
    from noterl.callbacks import EpisodePrinter, ProgressBar

    if verbose == 1:
        return [ProgressBar(episodes=episodes, steps=steps, always=True)]
    return [EpisodePrinter(log_every or 10)] if verbose == 2 else []
