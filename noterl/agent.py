"""Agents: compile, fit, evaluate, act and save."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

import numpy as np
from gymnasium.spaces import Discrete

from noterl import presets, saving
from noterl.acting.actor import Actor
from noterl.algorithm import Algorithm, Defaults, RunningUpdater, bind_head
from noterl.callback import Callback
from noterl.collect import RayWorkers, Workers
from noterl.collect.env_calls import EnvCall
from noterl.export.formats import export_agent
from noterl.history import History
from noterl.learning import optimizers
from noterl.learning.gradient_noise import GradientNoise
from noterl.learning.settings import check_network_of_user
from noterl.noise import NoiseProcess
from noterl.policies import Policy
from noterl.training import loading, publishing
from noterl.training import state as agent_state
from noterl.training.configuration import settled
from noterl.training.data_fit import DataFit
from noterl.training.dispatch import CallbackList
from noterl.training.evaluation import Evaluation
from noterl.training.fit import Fit
from noterl.training.parts import Parts
from noterl.training.play import Animation, Show, View, animation_path
from noterl.training.pretraining import pretrain
from noterl.utils.checks import check_bool, check_word
from noterl.utils.notebook import completions, table
from noterl.utils.words import explain_arguments

__all__ = ["Agent", "AgentOptions", "BaseAgent", "Defaults", "load"]

_NAMES_FOR_USERS = (
    "compile fit pretrain evaluate act play animate summary stop stop_training stop_reason close env_call env_get "
    "save restore publish export save_weights load_weights get_weights set_weights get_state set_state steps updates "
    "episodes history networks hyperparameters get_config configuration optimizer optimizers learning_rate get_rule "
    "set_rule policy noise replay observation_space action_space observation_size action_size"
)


class AgentOptions(TypedDict, total=False):
    """The keyword arguments of `Agent`, for subclasses that pass all on as `**options: Unpack[AgentOptions]`."""

    seed: int | None
    normalize_observation: bool
    normalize_reward: bool


class BaseAgent(Algorithm):
    """Base of `Agent` and `noterl.MultiAgent`: everything but `forward`, `act` and the sizes of spaces."""

    _parts: Parts

    def __init__(self, env: Any, **options: Unpack[AgentOptions]) -> None:
        super().__init__(env, **options)
        self._set(_parts=Parts(self))

    @classmethod
    def _initialize(cls, instance: Any, args: tuple, kwargs: dict) -> None:
        """Call `__init__`, and check that networks of the user fit a built-in agent."""
        super()._initialize(instance, args, kwargs)
        if cls.__module__.startswith("noterl."):
            check_network_of_user(instance)

    def __repr__(self) -> str:
        counters = vars(self).get("_counters")
        if counters is None:  # the constructor has not finished
            return f"<{super().__repr__()}>"
        counts = f"{counters.steps} steps, {counters.episodes} episodes, {counters.updates} updates"
        return f"<{super().__repr__()}: {counts}>"

    def _repr_html_(self) -> str:
        counts = {name: getattr(self, name) for name in ("steps", "episodes", "updates")}
        return table(type(self).__name__, {**self.get_config(), **counts})

    def __dir__(self) -> list[str]:
        """Return the names for completion: those for users of an agent, not those for authors of algorithms."""
        hidden = {*dir(BaseAgent), "generators", "spaces", "trace_counts"}
        return completions(self, {*_NAMES_FOR_USERS.split()}, hidden)

    @classmethod
    def from_preset(cls, env: str, name: str = "fast", **arguments: Any) -> Self:
        """Return a compiled agent with the settings of a preset; docs/presets.md lists the presets.

        `fit` then takes the budget, number of environments and workers from the preset, unless `fit` receives these
        arguments. The preset's schedules span the budget of the `fit` that runs them. A saved agent does not hold the
        preset, so `fit` of a loaded agent needs a budget.

        Args:
            env: the id of the environment, such as "CartPole-v1" or "atari:Pong".
            name: the name of the preset: "fast" for settings of noterl that reach a score in a short time, "zoo" for
                the settings that rl-zoo3 publishes for Stable-Baselines3.
            **arguments: of the constructor and of `compile`, and of `fit` the budget, the environments, `strategy`,
                `workers`, `log_every` and `info`; each replaces the preset's argument.

        Raises:
            ValueError: if there is no such preset, or an argument is unknown; the message names the nearest.

        Example:
        >>> import noterl
        >>> agent = noterl.PPO.from_preset("CartPole-v1", seed=1, hidden=(16,))
        >>> agent.epochs, agent.rollout_steps
        (10, 64)
        >>> history = agent.fit(steps=512, verbose=0)
        """
        return presets.find(cls, env, name).make(cls, env, arguments)

    @explain_arguments
    def compile(
        self,
        optimizer: Any = None,
        *,
        policy: Policy | str | Sequence[Policy | str] | None = None,
        noise: NoiseProcess | Sequence[NoiseProcess] | None = None,
        replay: Any = None,
        batch_size: int | str | None = None,
        learning_starts: float | None = None,
        update_every: float | str | None = None,
        updates: int | str | None = None,
        target_update: int | float | None = None,
        target_unit: str | None = None,
        reward_model: Any = None,
        jit_compile: bool | str = "auto",
        precision: str = "float32",
        steps_per_execution: int | str = "auto",
    ) -> None:
        """Set the optimizers, exploration, memory and update schedule; None keeps the algorithm's default.

        A second call keeps the replay memory and its contents unless `replay` is passed. All other arguments that are
        not passed return to the defaults, as in Keras, and a message lists what changed. Optimizers are reset.

        Args:
            optimizer: one optimizer, which is cloned for each of `optimizer_names`; a list in that order; or a dict by
                name. Keras optimizers work on every backend. With KERAS_BACKEND=torch, `torch.optim` optimizers and
                functions `parameters -> optimizer` also work. A name, such as "adam", stands for a Keras optimizer with
                Keras's defaults. A number, or a schedule of `noterl.schedules`, is the learning rate of the algorithm's
                default optimizer.
            policy: exploration policy for discrete actions, from `noterl.policies`, or its name, such as
                "epsilon_greedy"; `noterl.policies.get` lists the names. A list gives each worker process of `fit` one
                policy; `agent.policy` is then the first. If another agent has used the object, `agent.policy` is a new
                one with the same arguments.
            noise: exploration noise for continuous actions, from `noterl.noise`; or a list, as for `policy`.
            replay: the memory, a `noterl.Replay`, or a capacity, for the default memory of this capacity. `fit` and
                `build` allocate it.
            batch_size: transitions per gradient update, or "rollout" for a whole rollout. Larger batches have less
                gradient noise and cost more; 32 to 256 are usual. `fit` raises an error if the batch exceeds a rollout.
                A default that does is reduced instead.
            learning_starts: environment steps before the first update; actions are uniformly random until then.
            update_every: environment steps between groups of updates, or "episode".
            updates: gradient updates in a group, or "pass" for as many batches as the memory fills. The default is the
                algorithm's number. If `update_every` is below the default, this number is reduced, so that the updates
                per step do not increase. More than 4 updates per step cause a warning.
            target_update: an int is the number of environment steps between hard copies to the target. A float below 1
                is Polyak's coefficient, applied after every update (or every `target_period` updates).
            target_unit: what an int `target_update` counts: environment "steps", or gradient "updates". A hard copy
                precedes the updates that are due at its step, and follows the update whose number it is.
            reward_model: replaces the environment's reward in updates, or adds to it: a `noterl.imitation.GAIL`. Logs
                and evaluations still show the environment's reward. ACER, AlphaZero and `noterl.MultiAgent` have no
                reward model.
            jit_compile: False runs updates without compilation, for debugging.
            precision: "bfloat16" makes the layers of networks compute in bfloat16 in updates, which is faster on some
                processors and GPUs; see docs/speed.md. Weights, outputs, losses and optimizers stay float32.
            steps_per_execution: gradient updates in one compiled call; "auto" for a whole group, of up to 256 updates
                (ACER: one fixed size). The number does not affect results.

        Raises:
            ValueError: if an argument is not one of the allowed values; the agent is then unchanged.
            RuntimeError: while `fit` is running.
        """
        arguments = {name: value for name, value in locals().items() if name != "self" and value is not None}
        head = bind_head(self)  # first, because it finds a constructor that has not called that of this class
        self._parts.compile(head, arguments)

    def build(self) -> None:
        """Allocate the memory, build the optimizers and compile the updates.

        If the agent is not compiled, `compile` is called with all defaults first. `fit` calls `build`. Call `build`
        earlier to find errors before training. Acting and evaluating need and allocate no memory and no optimizers.

        Raises:
            ValueError: if the memory needs more bytes than are available, or the agent's methods do not fit together.
        """
        self._parts.build()

    @explain_arguments
    def fit(
        self,
        env: Any = None,
        episodes: float | None = None,
        *,
        steps: float | None = None,
        strategy: Any = None,
        callbacks: Iterable[Any] = (),
        num_envs: int | None = None,
        vectorize: bool | None = None,
        workers: int | Workers | RayWorkers | None = None,
        verbose: int | str = "auto",
        log_every: int | None = None,
        seed: int | None = None,
        info: Mapping[str, str] | Sequence[str] | None = None,
        dataset: Any = None,
        dataset_share: float = 0.5,
        updates: float | None = None,
        updates_per_epoch: float = 1_000,
        validation_data: Any = None,
    ) -> History:
        """Train the agent; a second call continues where the first ended.

        With `dataset` and `updates`, the agent learns from the data alone, without an environment: epochs take the
        place of episodes. `learning_starts`, `update_every` and `updates` of `compile` do not apply, and an int
        `target_update` and schedules count updates. See docs/data.md.

        Args:
            env: environment to train in, with the agent's spaces; by default the one that the agent was built with.
            episodes: number of episodes to finish, an int, or a float without a fraction such as 1e3.
            steps: number of environment steps to take, summed over the environments; an int or such a float. Training
                ends when `episodes` or `steps` is reached. Both may be None if a callback ends training, or for an
                agent of `from_preset`.
            strategy: how devices or processes share the updates: "data_parallel" on JAX, "ddp" on torch, "mirrored",
                "multiworker" or "parameter_server" on TensorFlow, or the framework's own object; None for one device.
                `batch_size` counts the transitions of all devices. See docs/scaling.md.
            callbacks: `noterl.callbacks` or `keras.callbacks`. Callbacks run in this order, but loggers and checkpoints
                run last.
            num_envs: number of environments; by default as in the previous `fit`, or one for each worker, or 1.
                Without workers, environments are stepped in turn in this process, which does not speed up slow
                environments.
            vectorize: whether gymnasium's native vector environment of the id steps all together, which is faster for
                many environments; by default False. Such ids are "CartPole-v1" and the ids of Atari games with raw
                frames; a `noterl.envs.Atari` needs no `vectorize`.
            workers: number of processes that step the environments; a `noterl.collect.Workers` with more settings; a
                `noterl.collect.RayWorkers` for processes of a Ray cluster; 0 or None for none. Workers also choose
                actions if the network runs in NumPy and `forward` returns no further fields. Workers end with this
                `fit`.
            verbose: 0 silent, 1 a progress bar, 2 a line every `log_every` episodes, at least every 10 seconds; "auto"
                is 1 on a terminal, else 2. With 1 and 2, a line at the end says why training ended and what it did.
            log_every: episodes between lines, 10 by default.
            seed: new seed of every generator, also of Keras layers. A seed also resets the environments. None
                continues all generators and episodes.
            info: keys of the step's `info` whose values the logs of an episode hold under the same names: a dict of
                keys and "sum", "mean", "max" or "last" over the steps that have the key; or a tuple of keys, which
                means "last". The values must be numbers. `evaluate` reports the values too.
            dataset: a `noterl.Dataset`, or what `Dataset.load` takes: a path or a Minari id. With `updates`, the agent
                learns from these data alone. With `episodes` or `steps`, batches hold transitions of the data beside
                the agent's own. The first data set sets the statistics of `normalize_observation` if the agent has
                none. The statistics then stay fixed. Agents that learn from rollouts cannot learn from data sets.
            dataset_share: the share of `dataset` in each batch of a `fit` in an environment, above 0 and below 1.
            updates: number of gradient updates on `dataset`, an int or a float without a fraction such as 1e5. May be
                None if a callback ends training.
            updates_per_epoch: number of updates in an epoch, at whose end callbacks and loggers act.
            validation_data: a data set like `dataset`; the logs of an epoch hold the mean loss on it as
                `validation_loss`. Nothing is learned from it.

        Returns:
            The `History` of this call, which is also `agent.history`.

        Raises:
            ValueError: if an argument is not one of the allowed values.
            RuntimeError: while another `fit` of this agent is running.
            noterl.collect.WorkerError: if an environment raises in a worker, or too many workers fail.
            NonFiniteError: if a loss or gradient is not finite; the agent holds the last finite state.
            KeyboardInterrupt: after Ctrl-C, when the step in progress has ended; the agent can then be saved, and a
                later `fit` continues. If an environment or a callback hangs, press Ctrl-C again: then the step is lost.
            SystemExit: after SIGTERM or SIGHUP in the same way, with the exit status 143 or 129.

        Warns:
            UserWarning: if training ended before the agent's first gradient update.
        """
        arguments = strategy, CallbackList(callbacks), num_envs, vectorize, workers, verbose, log_every, seed, info
        of_data = dataset, dataset_share, updates, updates_per_epoch, validation_data
        in_environment = dataset is None or any(argument is not None for argument in (env, episodes, steps))
        fit = Fit if updates is None and in_environment else DataFit
        return fit(self._parts, env, episodes, steps, *arguments, *of_data).run()

    def stop(self, reason: str) -> None:
        """End training after the step in progress; `stop_reason` and `History.stop_reason` hold the reason."""
        self._parts.session.request_stop(reason)

    def env_call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every training environment between two steps, such as for a curriculum.

        Use `env_call` in a callback, or in another thread, which waits for the end of a step. The method may belong to
        a wrapped environment. The call takes effect in the next step. If workers choose the actions, the call takes
        effect after the steps that the workers have already taken, up to a phase. The method should not change what the
        agent observes now, because the current observation is not read again.

        A saved run restores what the method has changed only if the environment has `get_state` and `set_state`,
        which include the change. All other environments restart the episodes after a call, with a warning; the callback
        should then repeat the call in `on_train_begin`. Each `fit` with workers makes new environments, as a restored
        run does. A worker that is replaced repeats the calls of this `fit`.

        Args:
            name: the method.
            *args: the arguments of the method.
            **kwargs: the keyword arguments of the method.

        Returns:
            The results, in the order of the environments.

        Raises:
            RuntimeError: if no `fit` is running.
            ValueError: if the environments have no such method, the method is `reset`, `step` or `close`, or the
                arguments cannot be sent to workers. No environment was then called.
            noterl.collect.WorkerError: if the method raises in a worker. Without workers, the method's own exception is
                raised.
        """
        return self._parts.gate.run(lambda: self._parts.session.call_envs(EnvCall(name, args, kwargs)))

    def env_get(self, name: str) -> list[Any]:
        """Return an attribute of every training environment, in order; see `env_call`.

        Raises:
            RuntimeError: if no `fit` is running.
            ValueError: if the environments have no such attribute, or it is a method.
        """
        return self._parts.gate.run(lambda: self._parts.session.call_envs(EnvCall(name, None, {})))

    @explain_arguments
    def pretrain(
        self,
        demonstrations: Any,
        updates: int,
        *,
        batch_size: int = 64,
        optimizer: Any = None,
        verbose: int | str = "auto",
        callbacks: Iterable[Any] = (),
    ) -> dict[str, list[float]]:
        """Clone the actions of an expert, before or between calls of `fit`.

        The loss depends on the head: cross entropy for `Categorical` and `Probabilities`, negative log-likelihood for
        `Gaussian` and `SquashedGaussian`, squared error of scaled actions for `Deterministic`, large margin for `Q`
        (`noterl.losses.large_margin`). Only what `forward` depends on is trained; target networks then receive a copy.
        If observations are normalized and no step was taken yet, the statistics start with the demonstrations. The
        counters of steps and updates, the optimizers of `compile` and the memory do not change.

        Args:
            demonstrations: the expert's episodes, a `noterl.Dataset` such as `noterl.imitation.Demonstrations`.
            updates: number of gradient updates.
            batch_size: pairs of observation and action in one update, sampled with replacement.
            optimizer: an optimizer or a learning rate, as for `compile`; Adam with 1e-3 by default.
            verbose: 0 silent, 1 a progress bar, 2 a line every 10 seconds, both with a line at the end; "auto" is 1
                on a terminal, else 2.
            callbacks: the hooks `on_batch_begin` and `on_batch_end` are called for each update, numbered from 0 in this
                call; `logs` hold the loss. Other events do not fire. `stop` in a hook ends pretraining after the
                group of updates in progress, of at most 256.

        Returns:
            `{"loss": losses}`, with the loss of each update.

        Raises:
            ValueError: if an argument is not one of the allowed values, or the demonstrations do not fit the agent's
                spaces; the agent is then unchanged.
            RuntimeError: while `fit` is running.
            NonFiniteError: if a loss or gradient is not finite; the agent holds the last finite state.
            KeyboardInterrupt: after Ctrl-C, when the group of updates in progress has ended.
        """
        return pretrain(self._parts, demonstrations, updates, batch_size, optimizer, verbose, CallbackList(callbacks))

    @explain_arguments
    def evaluate(
        self,
        env: Any = None,
        episodes: int = 10,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        num_envs: int = 1,
        callbacks: Iterable[Any] = (),
        info: Mapping[str, str] | Sequence[str] | None = None,
        max_steps: int | None = None,
    ) -> dict[str, Any]:
        """Play whole episodes without learning and return statistics; training is not affected.

        Args:
            env: environment to play in; by default a new copy of the training environment. An environment object is
                played itself, and stays open, unless the agent is training in it.
            episodes: number of episodes.
            seed: seed of the environments; by default the agent's seed in every call.
            deterministic: whether to act without exploration; if False, the agent explores as in training.
            num_envs: number of environments that are stepped together. If `deterministic` is True, the number changes
                results only by rounding.
            callbacks: `on_evaluate_begin` and `on_evaluate_end` are called, after the hooks of a `fit` in progress.
            info: keys of the step's `info` that are reduced over each episode, as in `fit`; by default the keys of
                the last `fit`.
            max_steps: an episode is cut off after this number of steps; None for no limit. An episode of more than
                100,000 steps is reported with a warning.

        Returns:
            `returns` and `lengths` (arrays `[episodes]`), `reward_mean`, `reward_std`, `reward_iqm` (the inter-quartile
            mean over these episodes), `length_mean`, and `success_rate` if an episode reports `is_success`; an episode
            without `is_success` counts as no success. With several agents also `reward_mean/NAME` of each. For each
            key of `info`, the mean over the episodes that have a value.

        Raises:
            ValueError: if an argument is not one of the allowed values.
        """
        evaluation = Evaluation(self._parts, env, episodes, seed, deterministic, max_steps, num_envs, info)
        return evaluation.run(CallbackList(callbacks))

    def save(self, path: str | Path, *, replay: bool = True) -> None:
        """Write the agent and its training state to one file, atomically; `replay=False` omits the replay memory.

        A run that resumes from a file written in `on_episode_end` or `on_step_end` equals an uninterrupted run. In
        batch hooks, the updates of the group are already applied but not yet counted, so such a file is inexact. If
        another thread calls `save` while `fit` runs, the training thread writes the file between two steps, and the
        call waits for this.

        Raises:
            OSError: if the file cannot be written; an older file at `path` is kept.
        """
        self._parts.gate.run(lambda: saving.write(path, self.get_document(replay=replay)))

    def __deepcopy__(self, memo: dict[int, Any]) -> BaseAgent:
        """Return an independent agent with the same state, as by `save` and `load`; the copy opens own environments."""
        return loading.copied(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise: compiled programs and open environments cannot be pickled."""
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied by copy.copy: use agent.save(path) and "
            "noterl.load(path), or copy.deepcopy(agent)"
        )

    def restore(self, path: str | Path) -> None:
        """Restore an agent of this class from a file; training then continues as if it had not been interrupted.

        Args:
            path: as for `noterl.load`.

        Raises:
            RuntimeError: while `fit` is running.
            noterl.saving.FileError: if the file is damaged or noterl did not write it; the agent is then unchanged.
            ValueError: if the file does not fit this agent; the agent is then unchanged.
        """
        self._parts.session.refuse_while_training("restore")
        self.set_document(saving.read(saving.locate(path)))

    @explain_arguments
    def publish(
        self,
        folder: str | Path,
        env: Any = None,
        *,
        episodes: int = 20,
        license: str = "unknown",
        video: bool = True,
        log: str | Path | None = None,
    ) -> Path:
        """Write a folder for a model hub, which `noterl.load` reads: the agent's file, and a card with the results.

        The card `README.md` has the metadata of hubs, the statistics of an evaluation, an animation of an episode, the
        learning curve, the settings and the versions. Each file is replaced atomically. If the evaluation is
        interrupted, an older folder is unchanged. The replay memory is not published.

        Args:
            folder: a folder that is missing, empty, or an agent published before.
            env: environment of the evaluation and the animation, as in `evaluate`.
            episodes: number of episodes of the evaluation.
            license: the identifier of the licence on the hub, such as "mit" or "apache-2.0".
            video: whether to write `replay.gif`. If the environment cannot be rendered, the card gives the reason.
            log: a log of the training, such as `log.csv` in the folder of a run, whose rewards are drawn; by default
                those of `history`. If there is a `run.toml` beside the log, the card shows its text as the settings.

        Returns:
            The path of the folder.

        Raises:
            ValueError: if an argument is not one of the allowed values.
            OSError: if a file cannot be written.
        """
        return publishing.publish(self, folder, env, episodes, license, video, log)

    def get_document(self, *, replay: bool = True) -> dict[str, Any]:
        """Return the document that `save` passes to `noterl.saving.write`.

        The arrays of the memory are views, which the next step changes. So call `get_document` in a callback, not in
        another thread while `fit` runs.
        """
        return agent_state.document(self._parts.declared(), replay=replay)

    def set_document(self, document: Any) -> None:
        """Restore a document that `noterl.saving.read` returned; raises the same errors as `restore`."""
        agent_state.set_document(self._parts, document)

    def export(self, path: str | Path, format: str = "keras") -> Path:
        """Write the acting function to files that do not need noterl.

        The function equals `act` with `deterministic=True`: observation encoding, normalization, network and scaling of
        actions. The inputs are batches of "observation", or of each part of a Dict, whose name is the keys, joined by
        dots. The outputs are "action", and "outputs", which the network returns. The result is compared with the agent
        on random observations before replacing older files.

        Args:
            path: of the file; the ending of the format is added if it is missing.
            format: "keras" for a `.keras` file; "saved_model" for a folder of TensorFlow; "onnx"; "torch" for a Python
                file with a module and a `.pt` file; "numpy" for a Python file that needs NumPy only and a `.npz` file.

        Returns:
            The path of the file or folder.

        Raises:
            ValueError: if the format is unknown or cannot be written on this backend, `path` has the ending of another
                format, the agent acts by something else than one network of known layers, or the result differs from
                the agent. Older files are then unchanged.
            ImportError: if an extra is missing.
            OSError: if a file cannot be written.
        """
        return self._parts.gate.run(lambda: export_agent(self, self._parts.actor, path, format))

    def save_weights(self, path: str | Path, *, layout: str = "keras") -> None:
        """Write the weights and the normalization statistics as a `.safetensors` file.

        Args:
            path: path of the file.
            layout: "keras" for a file that `load_weights` reads on any backend. "torch" for the names and the layout of
                `torch.nn.Module.state_dict`, with the name of the agent's attribute in front, such as "q.0.weight". All
                networks must then be modules of torch.

        Raises:
            ValueError: if `layout` is neither, or is "torch" and a network is not a module of torch.
        """
        check_word("layout", layout, ("keras", "torch"))
        if layout == "keras":
            weights = agent_state.without_shared(self, self.get_weights())
        else:
            weights = self._parts.gate.run(lambda: agent_state.torch_weights(self))
        saving.write_weights(path, weights)

    def load_weights(self, path: str | Path, *, allow_nonfinite: bool = False) -> None:
        """Load the weights from a file of `save_weights`, written on any backend.

        Args:
            path: path of the file.
            allow_nonfinite: whether network weights may be NaN or infinite.

        Raises:
            ValueError: if the weights do not fit or are not finite; the agent is then unchanged.
        """
        arrays = saving.read_weights(path, agent_state.largest_weights(self))
        shared = agent_state.shared_weights(self)
        arrays = {**{name: arrays[first] for name, first in shared.items() if first in arrays}, **arrays}
        self.set_weights(arrays, allow_nonfinite=allow_nonfinite)

    def get_weights(self) -> dict[str, np.ndarray]:
        """Return the weights by "<network>/<position>", and the normalization statistics."""
        return self._parts.gate.run(lambda: agent_state.get_weights(self))

    def set_weights(self, weights: Mapping[str, np.ndarray], *, allow_nonfinite: bool = False) -> None:
        """Set weights that `get_weights` returned; `load_weights` documents `allow_nonfinite` and the errors.

        If the weights differ, an agent that learns from rollouts discards the steps of the rollout in progress.
        """
        self._parts.gate.run(lambda: self._replace_weights(weights, allow_nonfinite))

    def _replace_weights(self, weights: Mapping[str, np.ndarray], allow_nonfinite: bool) -> None:
        self._parts.before_new_weights()
        agent_state.set_weights(self, weights, allow_nonfinite=allow_nonfinite)
        self._parts.mark_stale()

    def get_state(self) -> dict[str, Any]:
        """Return everything that training depends on, as nested dicts of arrays, numbers and strings."""
        return self._parts.gate.run(lambda: agent_state.copied_state(self._parts.declared()))

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned.

        Raises:
            RuntimeError: while `fit` is running.
            ValueError: if the state does not fit; the agent is then unchanged.
        """
        agent_state.replace_state(self._parts, state)

    def summary(self) -> None:
        """Print the backend, device, spaces, networks and memory."""
        print(agent_state.summary(self._parts.declared()))

    def play(
        self,
        env: Any = None,
        episodes: int = 1,
        *,
        render: bool | str = False,
        video: str | Path | None = None,
        frame_dir: str | Path | None = None,
        frame_frequency: int = 1,
        frame_delay: float = 0.0,
        fps: int = 30,
        overlay: bool = False,
        max_steps: int | None = None,
        deterministic: bool = True,
        seed: int | None = None,
        trajectory: bool = True,
    ) -> dict[str, Any]:
        """Play and show whole episodes, and return statistics and trajectories; training is not affected.

        With the same `seed`, `evaluate` plays the same episodes. Window, video and images can be combined.

        Args:
            env: environment to play in; by default a new copy of the training environment. An environment object is
                played itself, and stays open, unless the agent is training in it.
            episodes: number of episodes, played one after another.
            render: True or "human" shows the episodes in a window, which needs a display.
            video: a `.gif` or `.mp4` file to write all episodes to; `.mp4` needs the extra `mp4`.
            frame_dir: a folder for single frames, named `00000.jpg`, `00001.jpg` and so on. Each episode adds the frame
                after the reset and one for each step.
            frame_frequency: number of frames of which the first is saved in `frame_dir`.
            frame_delay: seconds to wait after each frame.
            fps: frames per second of the video, and the most in a window.
            overlay: whether frames show the step, the return so far, and the agent's estimate of the value.
            max_steps: an episode is cut off after this number of steps; None for no limit.
            deterministic: whether to act without exploration.
            seed: seed of the environments and the exploration; by default the agent's seed in every call.
            trajectory: whether to record the trajectories.

        Returns:
            The statistics of `evaluate`, over the steps that were played. `trajectory` is a list with an entry for each
            episode, with its `observations` `[T + 1, ...]`, `actions` `[T, ...]`, `rewards` `[T]` and `terminated`.

        Raises:
            ValueError: if an argument is not one of the allowed values, the environment renders no frames, or there is
                no display.
            ImportError: if an extra is missing.
            OSError: if a file cannot be written.
        """
        path = None if video is None else animation_path("video", video)
        view = View(render, path, frame_dir, frame_frequency, frame_delay, fps, overlay)
        return Show(Evaluation(self._parts, env, episodes, seed, deterministic, max_steps), view, trajectory).run()

    def animate(
        self,
        path: str | Path,
        env: Any = None,
        max_steps: int | None = None,
        fps: int = 30,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        overlay: bool = False,
    ) -> float:
        """Play an episode and write a `.gif` or `.mp4`; return the reward. `play` documents the arguments.

        A notebook shows the result as the animation.
        """
        video = animation_path("path", path)
        view = View(video=video, fps=fps, overlay=overlay)
        result = Show(Evaluation(self._parts, env, 1, seed, deterministic, max_steps), view).run()
        animation = Animation(result["returns"][0])
        animation.path = video
        return animation

    def close(self) -> None:
        """Close the environments; a later `fit` opens new ones and continues the episodes.

        Raises:
            RuntimeError: while `fit` is running.
        """
        self._parts.session.refuse_while_training("close")
        self._parts.session.suspend()
        self.spaces.source.close()

    def set_rule(self, rule: str, value: float, optimizer: str | None = None) -> None:
        """Set `learning_rate`, `beta_1`, `beta_2` or `weight_decay` of one optimizer, or of all for None.

        Compiled updates are not traced again.

        Raises:
            ValueError: if the optimizer is unknown or has no such rule, or the value is out of bounds.
        """
        optimizers.set_rules(self.optimizers, rule, value, optimizer)

    @contextlib.contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore the agent exactly at the end of the `with` block; inside, the agent may be trained and compiled.

        The training environments keep the episodes in progress. Inside the block, pass another environment to `fit`,
        such as `new_environment()`.

        Raises:
            RuntimeError: while `fit` is running.
        """
        with self._parts.gate.owned(), self._parts.preserved():
            yield

    def new_environment(self) -> Any:
        """Return a new copy of the training environment."""
        return self.spaces.source.make_evaluation()

    def get_rule(self, rule: str, optimizer: str | None = None) -> float:
        """Return the value of a rule of one optimizer, by default the first; `set_rule` lists the rules.

        Raises:
            ValueError: if the optimizer is unknown or has no such rule.
        """
        return optimizers.get_rule(optimizers.chosen(self.optimizers, optimizer)[0], rule)

    def gradient_noise(self, samples: int) -> GradientNoise:
        """Return a `GradientNoise`, which measures how much gradients differ between `samples` batches.

        If the agent is not built, `build` is called.

        Raises:
            ValueError: if the agent learns from rollouts of a single transition.
        """
        return GradientNoise(self._parts.build()[0], samples)

    def largest_batch(self, size: int) -> int:
        """Return the size of the largest batch, of at most `size` transitions, that updates can sample now."""
        return self._parts.build()[0].largest_batch(size)

    def show_message(self, message: str) -> None:
        """Write a line to standard error, unless `fit` was called with `verbose=0`."""
        self._parts.session.show_message(message)

    @property
    def optimizers(self) -> dict[str, Any]:
        """The optimizers by name."""
        return self._parts.learner.optimizers

    @property
    def optimizer(self) -> Any:
        """The first optimizer."""
        return self.optimizers[self.optimizer_names[0]]

    @property
    def learning_rate(self) -> float:
        """The first optimizer's learning rate; `set_rule("learning_rate", value)` changes it."""
        return self.get_rule("learning_rate")

    @property
    def policy(self) -> Policy | None:
        """The exploration policy; None if the agent has none or is not compiled."""
        return self._parts.setting("policy")

    @property
    def noise(self) -> NoiseProcess | None:
        """The exploration noise; None if the agent has none or is not compiled."""
        return self._parts.setting("noise")

    @property
    def replay(self) -> Any:
        """The replay memory; None if the agent has none or is not compiled."""
        return self._parts.setting("replay")

    @property
    def compile_arguments(self) -> dict[str, Any]:
        """The arguments of the last `compile`."""
        return dict(self._parts.setting("arguments") or {})

    @property
    def schedule(self) -> Any:
        """The schedule of updates and hard copies to the target; None if the agent is not compiled."""
        return self._parts.setting("schedule")

    @property
    def update_batch_size(self) -> int:
        """Number of transitions in one gradient update."""
        return self._parts.learner.batch_size

    @property
    def metric_names(self) -> frozenset[str]:
        """The names of the metrics that updates log; `fit` adds their means to the logs of each episode."""
        return self._parts.declared().learner.updater.metric_names

    @property
    def configuration(self) -> dict[str, Any]:
        """What determines the run, with all defaults, as numbers and strings by name: for experiment trackers."""
        return settled(self._parts.declared())

    @property
    def finished_epochs(self) -> int:
        """Finished epochs of `fit(dataset=, updates=)` so far."""
        return self._counters.epochs

    @property
    def log_step(self) -> int:
        """Environment steps, plus the updates of `fit(dataset=, updates=)` so far: the x axis of logs."""
        return self._counters.steps + self._counters.data_updates

    @property
    def callbacks(self) -> Sequence[Callback]:
        """The callbacks of the `fit` in progress, or of the last one, in the order in which they run."""
        return self._parts.session.callbacks.callbacks

    @property
    def history(self) -> History | None:
        """The `History` of the last `fit`; None before the first."""
        return self._parts.session.history

    @property
    def fits(self) -> int:
        """Number of `fit` calls in this process that started training."""
        return self._parts.session.fits

    @property
    def recorded_info(self) -> dict[str, str]:
        """The keys of the step's `info` that the last `fit` logged, with "sum", "mean", "max" or "last"."""
        return dict(self._parts.session.info)

    @property
    def stop_training(self) -> bool:
        """Whether `stop` was called, or this was set to True."""
        return self._parts.session.stop.is_set

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        self._parts.session.stop.is_set = check_bool("stop_training", value)
        if not value:
            self._parts.session.stop.reason = None

    @property
    def stop_reason(self) -> str | None:
        """The reason passed to `stop`, or None."""
        return self._parts.session.stop.reason

    def _before_assignment(self, name: str, value: Any) -> None:
        """Refuse what an agent that is built cannot change."""
        if "_parts" in vars(self):  # the constructor of this class has finished
            self._parts.check_assignment(name, value)

    def _on_change(self, name: str) -> bool:
        """Return whether programs are traced again, at most three times before different updates of one `fit`.

        Called when an attribute that programs have read gets another value. The acting program is then outdated.
        """
        self._parts.check_retrace(name)
        self._parts.outdate_acting(name)
        return super()._on_change(name)

    def _own_updater(self) -> RunningUpdater:
        return super()._own_updater() if self._parts.setting("optimizers") is None else self._parts.learner.updater

    def _new_actor(self, *parts: Any) -> Actor:
        """Return the actor of these parts, the arguments of `Actor`."""
        return Actor(*parts)


class Agent(BaseAgent):
    """A reinforcement-learning agent: networks, exploration and training.

    A subclass builds networks in `__init__` (after `super().__init__(env, seed=seed)`), and defines `forward`, and
    either `loss` or `update`. A subclass with a target network also defines `update_target`. The agent collects
    networks, variables and seed generators from its attributes, including attributes that are lists, tuples or dicts.

    If the observation space is not a Box, networks receive one float32 vector; see `noterl.envs.observation`. For
    `Hindsight`, an agent may define `compute_reward(achieved_goal, desired_goal, info)` and `compute_terminated`. An
    agent without these methods uses the environment's methods.

    Args:
        env: a gymnasium id, an environment, a function that makes one, a native vector environment, or a pair
            (observation_space, action_space).
        seed: seed of all random numbers of the run: environments, exploration, sampling and networks; None for a random
            seed.
        normalize_observation: whether networks receive observations that are normalized by the running mean and
            standard deviation.
        normalize_reward: whether rewards are divided by the running standard deviation of the discounted return.

    Raises:
        ValueError: if `env` is none of these, or the algorithm does not support its spaces.

    Attributes:
        memory: the kind of memory that the agent learns from: "replay", "rollout", or "sequences" for rollouts that are
            replayed as sequences. Updates of agents with sequences receive batches `[T, N, ...]`.
        head: the object of `noterl.heads` that converts the network's output into an action.
        optimizer_names: the optimizers that `update` names in `minimize`.
        action_spaces: the kinds of action space that the algorithm supports.
        observation_spaces: the kinds of observation space that the algorithm supports.
        random_spec: name -> (shape, distribution) of the random numbers that an update needs, and receives in
            `batch.extra`. The shape describes one row of a batch. The distribution is "normal" (standard normal),
            "uniform" (in [0, 1)), or "batch_normal", whose numbers are equal in all rows of a batch.
        next_actions: whether batches of a replay memory hold the action of the following step, as `next_action` in
            `batch.extra`, and as `has_next_action` (float32 `[B]`) whether the memory holds such a step.
        supports_replay: for agents that learn from rollouts, whether `compile` accepts a replay memory. The memory
            stores rollouts with the fields that `prepare` returns.
        corrects_staleness: for agents that learn from rollouts, whether `prepare` takes rollouts of an older policy.
            Otherwise, workers with `overlap` wait while the agent learns.
        extra_spec: name -> (shape, dtype) of the fields that `forward` returns beside the output, or `prepare` returns.
            Fields of `prepare` need not be declared. Fields of `forward` are passed on as float32.
        info_spec: name -> (shape, dtype, default) of fields of the environment's `info` that the memory stores, such as
            `to_play`. `batch.extra` holds each field for the observation, and as `next_<name>` for the next
            observation. The default is used where `info` lacks the field. The field `action_mask` is added if an
            environment reports masks and the head takes masks.
        state_spec: name -> shape, or (shape, dtype), of the state that the policy passes from one step of an episode to
            the next; see `forward`. The dtype is float32 by default. Updates receive sequences `[T, S, ...]`, with the
            state before the first row in `batch.extra["state"]`, and in `batch.extra["starts"]` whether a row starts an
            episode.
        learner_state_spec: the same for networks that do not act, such as the critic of a rollout agent; see `prepare`.
        sequence_length: steps of a sequence. For rollouts, a divisor of `rollout_steps` and `batch_size`; by default
            the largest up to 64. For a replay memory, by default 32.
        burn_in: for a replay memory, steps before these. The weights of such rows are 0.
        state_every: for a replay memory, a sequence starts at each multiple of so many steps of a lane; by default half
            of `sequence_length`.
        needs_whole_batch: whether the replicas of a strategy cannot share a batch, for example because of statistics of
            the batch. `fit(strategy=)` then raises.
        update_period: n if every n-th update differs from the others, for example because it also updates the actor.
            If n is above 1, `update` receives a second argument, the Python int `updates % n`.
        target_period: number of updates between two steps of Polyak averaging; a divisor of `update_period`.
        rollout_steps: steps of each environment in a rollout.
        epochs: passes over each rollout.
        replay_ratio: for sequences, the mean number of updates on stored sequences after each rollout.
        replay_starts: for sequences, the environment steps before the first of these updates.
        steps: environment steps so far.
        updates: gradient updates so far.
        episodes: finished episodes so far.
        stop_training: whether `stop` was called; assigning True also ends training.
    """

    @property
    def observation_size(self) -> int:
        """Number of values in an observation as networks receive it."""
        return int(np.prod(self.observation_shape))

    @property
    def action_size(self) -> int:
        """Number of Discrete actions, or of values in an action of another space."""
        space = self.action_space
        return int(space.n) if isinstance(space, Discrete) else int(np.prod(space.shape or ()))

    def act(
        self,
        observation: Any,
        state: Any = None,
        *,
        starts: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
    ) -> Any:
        """Return the action for one observation, or actions `[N, ...]` for a batch of N observations.

        For a Dict space, a batch is a dict with a batch of each part. If `deterministic` is False, the agent explores,
        with a separate generator, so calling `act` never changes training.

        An agent with a `state_spec` returns `(action, state)`. Pass the state to the next call in the same episode:

            action, state = agent.act(observation)  # the first step of an episode
            action, state = agent.act(next_observation, state)

        Args:
            observation: one observation, or a batch.
            state: the state of the policy that the last call returned: a dict of arrays `[...]` for one observation,
                `[N, ...]` for a batch. None starts all episodes.
            starts: the rows of a batch whose episode starts, bool `[N]`; their `state` is not used.
            deterministic: whether to act without exploration.
            action_mask: the legal actions, such as `info["action_mask"]`: `[A]` for one observation, `[N, A]` for a
                batch. None if all are legal.

        Raises:
            ValueError: if the shape fits neither one observation nor a batch, the dtype of the space
                cannot represent a value, a value is not finite or not in a Discrete space, or the mask, `state` or
                `starts` does not fit the shape; if the agent's head takes no masks, or the agent has no state.
        """
        return self._parts.act(observation, state, starts, deterministic, action_mask)


def load(path: str | Path, custom_objects: dict[str, type] | None = None) -> Agent:
    """Build an agent from a file and restore its state.

    What only training needs is kept as the arrays of the file until `fit` or `build` allocates it, so that a loaded
    agent acts without a replay memory and without the state of optimizers. The file may be deleted. The result of a
    file with several agents is a `MultiAgent`, which type checkers do not see.

    Args:
        path: path of a file written by `Agent.save` or a `Checkpoint`, or of a folder written by `Agent.publish`; or
            an address in a model hub, `hub:OWNER/NAME` or `hub:OWNER/NAME@REVISION`, which needs the extra `hub`.
        custom_objects: your own classes by name, in addition to those registered with `noterl.register`.

    Raises:
        noterl.saving.FileError: if the file is damaged or noterl did not write it.
        ValueError: if the file names an unregistered class, or an argument that cannot be stored in a file.
        OSError: if the file does not exist, or cannot be downloaded.
    """
    return loading.load(path, custom_objects)
