"""Agent: what users call.

Owns: compile, fit, evaluate, act, save. What users override lies in `algorithm.py`, the loop in `loop.py`, the state
tree in `agent_state.py`, gradients in `backends/`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from noterl import envs, saving
from noterl.algorithm import Algorithm, Defaults
from noterl.callback import CallbackList, Events
from noterl.envs.wrappers.zero_based import shift
from noterl.heads import one_of
from noterl.history import History
from noterl.learning import dry_run as building
from noterl.learning import optimizers
from noterl.learning.rollout_learner import OnPolicy, Replayed
from noterl.learning.settings import Setup, budget_of, checked_fit_arguments, loggers
from noterl.noise import NoiseProcess
from noterl.policies import Policy
from noterl.random import Generators, check_seed
from noterl.training import session as agent_lanes
from noterl.training import state as agent_state
from noterl.training.loop import Loop, evaluate
from noterl.utils.checks import check_bool
from noterl.utils.console import print_message

__all__ = ["Agent", "Defaults", "load"]


class Agent(Algorithm):
    """An agent: networks, and how they act and learn.

    A subclass builds its networks in `__init__` (after `super().__init__(env, seed=seed)`), and defines `forward` and
    `loss`, or `forward` and `update`; with a target network also `update_target`. Networks, variables and seed
    generators are found as attributes, also in lists, tuples and dicts. Observations that are no Box reach networks as
    one float32 vector, as `noterl.envs.observation` says. With `Hindsight`, `compute_reward(achieved_goal,
    desired_goal, info)` and `compute_terminated` may be defined, which are the environment's otherwise.

    Args:
        env: a gymnasium id, an environment, a function that makes one, a native vector environment, or a pair
            (observation_space, action_space).
        seed: the one seed of the run: environments, exploration, sampling and networks; None for a fresh one.

    Raises:
        ValueError: if `env` is none of these, or of a kind of space that the algorithm does not take.

    Attributes:
        head: how the network's output becomes an action.
        optimizer_names: the optimizers that `update` names in `minimize`.
        action_spaces: kinds of action space the algorithm takes.
        observation_spaces: kinds of observation space it takes.
        random_spec: random numbers that an update takes, by name: (their shape for each row of a batch, "normal" for
            standard normal or "uniform" for those in [0, 1)). They stand in `batch.extra`.
        replays_rollouts: whether rollouts, with what `prepare` returned, may go to a replay memory that `compile` gets.
        extra_spec: name -> (shape, dtype) of what `prepare` returns of rollouts; found out where it is not said.
        update_period: where updates differ, as with policies that are updated at every n-th only, n. `update` is then
            given a second argument, `updates % n`, an int that Python may branch on.
        target_period: updates between two steps of Polyak averaging; it divides `update_period`.
        steps: environment steps so far.
        updates: gradient updates so far.
        episodes: finished episodes so far.
        fits: calls of `fit` in this process that got as far as to train.
        stop_training, stop_reason: whether training is to stop, and why.
    """

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.history: History | None = None
        self.fits = 0
        self._by_hand = Generators(self.generators.seed)("act")  # what `act` draws from; no part of the state
        self._setup: Setup | None = None
        self._verbose = 1
        self._callbacks = CallbackList()
        self._events, self._training = Events(), False
        self._restored: dict[str, Any] = {}  # what the next fit takes over: states of lanes and callbacks
        self._visited: tuple[Any, envs.EnvSource] | None = None  # what fit was given last, besides the agent's own

    def compile(
        self,
        optimizer: Any = None,
        *,
        policy: Policy | None = None,
        noise: NoiseProcess | None = None,
        replay: Any = None,
        batch_size: int | str | None = None,
        learning_starts: int | None = None,
        update_every: int | str | None = None,
        updates: int | str | None = None,
        target_update: int | float | None = None,
        jit_compile: bool | str = "auto",
        steps_per_execution: int | str = "auto",
    ) -> None:
        """Replace some of the algorithm's defaults.

        Args:
            optimizer: one (cloned for each of `optimizer_names`), a list in that order, or a dict by name. Keras
                optimizers anywhere; with KERAS_BACKEND=torch also `torch.optim` ones, or a function `parameters ->
                optimizer`.
            policy: exploration among discrete actions, of `noterl.policies`.
            noise: exploration around continuous actions, of `noterl.noise`.
            replay: the memory, a `noterl.Replay`.
            batch_size: transitions per gradient update, or "rollout" for all of a rollout. Larger: smoother and dearer;
                32 to 256 are usual.
            learning_starts: environment steps before the first update, with uniformly random actions.
            update_every: environment steps between groups of updates, or "episode".
            updates: gradient updates in a group, or "pass" for one pass over the memory.
            target_update: an int counts environment steps between hard copies to the target, a float below 1 is
                Polyak's coefficient, applied after every update (or after every `target_period`-th).
            jit_compile: False runs updates without compiling, to debug them.
            steps_per_execution: gradient updates in one compiled call; "auto" for a whole group. Changes no result.

        Raises:
            ValueError: naming the argument that is not what it may be; nothing is changed then.
            RuntimeError: while `fit` is running.
        """
        arguments = {name: value for name, value in locals().items() if name != "self" and value is not None}
        head = building.bound_head(self)
        self._refuse_while_training("compile")
        setup = Setup(self, head, arguments)
        on_policy = None
        if self.memory == "rollout":
            on_policy = OnPolicy(self) if setup.replay is None else Replayed(self, setup.replay)
        setup.claim(self)
        self._setup, self._built = setup, False
        self.optimizers = dict(setup.optimizers)
        self.head, self.policy, self.noise = head, setup.policy, setup.noise
        averaged = "schedule" in vars(self) and self.schedule.polyak
        self.replay, self.schedule, self.on_policy = setup.replay, setup.schedule, on_policy
        self.jit_compile, self.steps_per_execution = setup.jit_compile, setup.steps_per_execution
        self.explorer.generator = self.generators("exploration")
        if averaged or self.schedule.polyak:  # else it is 1, or an agent's own that its hard copies use
            self.tau.assign(1.0 if self.schedule.tau is None else self.schedule.tau)

    def fit(
        self,
        env: Any = None,
        episodes: int | None = None,
        *,
        steps: int | None = None,
        callbacks: Iterable[Any] = (),
        num_envs: int | None = None,
        verbose: int | str = "auto",
        log_every: int | None = None,
        seed: int | None = None,
    ) -> History:
        """Train; a second call goes on where the first ended.

        Args:
            env: train here instead of the environment the agent was built with; the spaces must be the same.
            episodes: finished episodes to add.
            steps: environment steps to add, in total over lanes. Whichever budget is spent first ends training;
                neither is needed where a callback stops it.
            callbacks: `noterl.callbacks` or `keras.callbacks`, heard in this order.
            num_envs: environments stepped side by side in this process.
            verbose: 0 silent, 1 a progress bar, 2 a line every `log_every` episodes; "auto" is 1 on a terminal, else 2.
            log_every: episodes between lines, 10 by default.
            seed: start every generator, those in Keras's layers too, and the environments, afresh from it.

        Returns:
            The `History` of this call, which `agent.history` holds too.

        Raises:
            ValueError: naming the argument that is not what it may be.
            RuntimeError: while another `fit` of this agent is running.
            NonFiniteError: if a loss or gradient is not finite; the agent holds the last finite state.
            KeyboardInterrupt: after the step in progress is whole; the agent can be saved and go on.
        """
        self._refuse_while_training("fit")
        heard = CallbackList(callbacks)
        verbose = checked_fit_arguments(env, episodes, steps, num_envs, verbose, log_every, heard)
        check_seed(seed)
        source = agent_lanes.find_source(self, env)
        self.build()
        budget = budget_of(self, episodes, steps)
        for callback in heard.callbacks:
            callback.before_fit(self, budget)
        self.fits += 1
        fresh = seed is not None and not budget.resumed
        agent_lanes.prepare(self, source, num_envs, fresh=fresh)
        if self.on_policy is not None:
            self.on_policy.rollout.open(self.lanes.num_envs)
        if fresh:
            building.reseed(self, seed)
            self._by_hand = Generators(seed)("act")
        self.history = history = History()
        self._verbose = int(verbose)
        self._callbacks = CallbackList([*heard.callbacks, history, *loggers(self._verbose, log_every, episodes, steps)])
        self._callbacks.set_agent(self)
        self._remind_callbacks()
        self._events = self._callbacks.bind()
        self.stop_training, self.stop_reason = False, None
        loop = Loop(
            self, self._events, live=self._callbacks.needs_live_updates, episodes=None, steps=None, history=history
        )
        loop.last_episode, loop.last_step = budget.last_episode, budget.last_step
        self._training = True
        try:
            loop.run()
        finally:
            self._events, self._training = Events(), False
        return history

    def stop(self, reason: str) -> None:
        """End training after the transition in progress; the reason stands in `stop_reason` and `History`."""
        if not isinstance(reason, str):
            raise ValueError(f"reason must be a str, got {reason!r}")
        self.stop_training, self.stop_reason = True, reason

    def evaluate(
        self,
        env: Any = None,
        episodes: int = 10,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        num_envs: int = 1,
    ) -> dict[str, Any]:
        """Play whole episodes without learning; training is left exactly as it was.

        Args:
            env: where to play; a fresh copy of the training environment by default.
            episodes: how many.
            seed: of the environments; by default one of the agent's own, the same at every call.
            deterministic: act by the head alone; otherwise explore as in training.
            num_envs: environments stepped side by side; where acting is deterministic only rounding depends on it.

        Returns:
            `returns` and `lengths` (arrays `[episodes]`), `reward_mean`, `reward_std`, `reward_iqm` (the inter-quartile
            mean), `length_mean`, and `success_rate` where the environment says `is_success`.

        Raises:
            ValueError: naming the argument that is not what it may be.
        """
        self.build()
        source = self.source if env is None else agent_lanes.fitting_source(self, env)
        try:
            return evaluate(self, source, episodes, seed, deterministic, num_envs, self._events)
        finally:
            if source not in (self.source, env):
                source.close()

    def act(self, observation: Any, *, deterministic: bool = True) -> Any:
        """Return the action for one observation, or actions `[N, ...]` for a batch of them (of a Dict, of each part).

        Both are as the environment has them, also where its discrete values do not start at zero. What is drawn where
        `deterministic` is False comes from a generator of its own: training stays as it was.

        Raises:
            ValueError: if the observation has neither the shape of one nor of a batch.
        """
        check_bool("deterministic", deterministic)
        self.build()
        single = self.view.axes(observation) == 0
        observed, acted = self.source.shifts
        seen = self.view(shift(observation, observed, -1))
        self.acting.stale = True
        explorer = self.explorer if deterministic else self.explorer.twin(self._by_hand)
        actions = self.act_on(seen[None] if single else seen, deterministic, explorer, self.steps)
        actions = shift(actions, acted, +1)
        return one_of(actions, 0, self.action_space) if single else actions

    def save(self, path: str | Path, *, replay: bool = True) -> None:
        """Write everything into one file, whole or not at all; `replay=False` leaves the memory out.

        During a `fit` a run goes on from it exactly where it was written at an episode's end or in `between_steps`: in
        the hooks of a batch, the updates of its group are made already, and are not counted yet.

        Raises:
            OSError: if it cannot be written; an older file at `path` stays.
        """
        self.build()
        saving.write(path, agent_state.document(self, replay=replay))

    def restore(self, path: str | Path) -> None:
        """Take everything from a file of an agent of this class; training goes on as if it had not been interrupted.

        Raises:
            RuntimeError: while `fit` is running.
            noterl.saving.FileError: if the file is damaged or not one of noterl's; nothing is changed then.
            ValueError: if it does not fit this agent; nothing is changed then.
        """
        self._refuse_while_training("restore")
        agent_state.restore(self, saving.read(path))

    def save_weights(self, path: str | Path) -> None:
        """Write the networks' weights and the moments of normalisers, as a `.safetensors` file in Keras's layout."""
        saving.write_weights(path, agent_state.weights(self))

    def load_weights(self, path: str | Path) -> None:
        """Take the weights from a file of `save_weights`, written on any backend.

        Raises:
            ValueError: if the weights do not fit; nothing is changed then.
        """
        agent_state.set_weights(self, saving.read_weights(path))

    def get_state(self) -> dict[str, Any]:
        """Return everything that training depends on, as nested dicts of arrays, numbers and strings."""
        self.build()
        state = agent_state.get_state(self, replay=True)
        return {**state, "replay": copy.deepcopy(state["replay"])}  # the memory gives views of itself

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned.

        Raises:
            RuntimeError: while `fit` is running.
            ValueError: if it does not fit; nothing is changed then.
        """
        self._refuse_while_training("set_state")
        self.build()
        agent_state.set_state(self, state)

    def summary(self) -> None:
        """Print backend, device, spaces, networks and memory."""
        self.build()
        print(agent_state.describe(self))

    def animate(
        self, path: str | Path, env: Any = None, max_steps: int | None = None, fps: int = 30, *, seed: int | None = None
    ) -> float:
        """Play an episode and write it as a `.gif` or `.mp4`; return its reward."""
        from noterl.training.video import animate

        return animate(self, path, env, max_steps, fps, seed)

    def close(self) -> None:
        """Close the environments made here; a later `fit` makes them again and brings them to where they were."""
        agent_lanes.park(self)
        self.source.close()

    def set_rule(self, rule: str, value: float, optimizer: str | None = None) -> None:
        """Set `learning_rate`, `beta_1`, `beta_2` or `weight_decay` of one optimizer, or of all, without retracing."""
        self._ensure_compiled()
        if optimizer is not None and optimizer not in self.optimizer_names:
            raise ValueError(f"optimizer must be one of {', '.join(self.optimizer_names)}, got {optimizer!r}")
        for name in self.optimizer_names if optimizer is None else (optimizer,):
            optimizers.set_rule(self.optimizers[name], rule, float(value))

    @property
    def optimizer(self) -> Any:
        """The first optimizer."""
        self._ensure_compiled()
        return self.optimizers[self.optimizer_names[0]]

    @property
    def learning_rate(self) -> float:
        """The first optimizer's learning rate; `set_rule("learning_rate", value)` changes it."""
        return optimizers.get_rule(self.optimizer, "learning_rate")

    def say(self, message: str) -> None:
        """Tell the user something, unless `fit` was asked to be silent."""
        if self._verbose:
            print_message(f"noterl: {message}")

    def _refuse_while_training(self, method: str) -> None:
        if self._training:
            raise RuntimeError(f"{method} cannot be called while fit is running: end training with stop(reason) first")

    def _ensure_compiled(self) -> None:
        if self._setup is None:
            self.compile()

    def build(self) -> None:
        """Compile with the algorithm's defaults if need be, and allocate everything; training and acting do so."""
        self._ensure_compiled()
        super().build()

    def _remind_callbacks(self) -> None:
        """Give callbacks the state that was restored for them; that of others waits for a fit that has them."""
        known = self._restored.get("callbacks", {})
        try:
            self._callbacks.set_state(known)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"callbacks: the state that was restored does not fit them: {error!r}") from error
        for key, _ in self._callbacks._keyed():
            known.pop(key, None)


def load(path: str | Path, custom_objects: dict[str, type] | None = None) -> Agent:
    """Build the agent that a file holds, and restore it.

    Args:
        path: of a file written by `Agent.save` or a `Checkpoint`.
        custom_objects: classes of your own by name, besides those known through `noterl.register`.

    Raises:
        noterl.saving.FileError: if the file is damaged or not one of noterl's.
        ValueError: if it names a class nobody registered, or arguments that a file cannot hold.
    """
    document = saving.read(path)
    agent = agent_state.build(document, custom_objects)
    try:
        agent_state.restore(agent, document)
    except BaseException:
        agent.close()
        raise
    return agent
