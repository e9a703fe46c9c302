"""Words of other libraries and what replaces them in noterl, for error messages and for the pages of docs/migration."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])

# Library -> section of its migration page -> words -> their replacement. A key may hold several words. "None" means
# that noterl has no replacement.
TABLES: dict[str, dict[str, dict[str, str]]] = {
    "Stable-Baselines3": {
        "Model": {
            "MlpPolicy, CnnPolicy, MultiInputPolicy": "`noterl.PPO(env)`; the network follows from the observations",
            "policy_kwargs, net_arch": "`hidden=(64, 64)`, or `network=`",
            "activation_fn": "`activation=` of PPO, A2C, TRPO and ACER, or `network=`",
            "learn": "`fit(steps=)`, exact; or `fit(episodes=)`",
            "total_timesteps": "`fit(steps=)`",
            "reset_num_timesteps": "leave it out; a second `fit` always continues",
            "callback": "`fit(callbacks=[...])`, a list",
            "progress_bar": "`fit(verbose=1)`",
            "log_interval": "`fit(verbose=2, log_every=)`",
            "predict": "`act(observation, deterministic=)`",
            "evaluate_policy": "`evaluate(env, episodes)` of the agent; a dict",
            "n_eval_episodes": "`evaluate(episodes=)`",
            "load": "`noterl.load(path)`, or `restore(path)` of an agent",
            "save_replay_buffer, load_replay_buffer": "part of `save`; `save(path, replay=False)` leaves it out",
            "get_parameters, set_parameters": "`get_weights()`, `set_weights(weights)`",
            "make_vec_env, DummyVecEnv, n_envs": "`fit(num_envs=)`",
            "SubprocVecEnv": "`fit(num_envs=, workers=)`",
            "VecNormalize": "`normalize_observation=True, normalize_reward=True`, saved with the agent",
            "VecFrameStack": "`noterl.envs.FrameStack(env, 4)` and `Replay(capacity, frame_stack=4)`",
            "VecMonitor, Monitor": "leave it out; the logs hold `reward` and `length` of each episode",
            "set_env": "`fit(env)`",
            "get_env, training_env": "None; keep the environment that you pass as `env`",
            "check_env": "`noterl.envs.check`",
            "set_random_seed": "the agent's `seed=`; it covers the environments",
            "device": "leave it out; the Keras backend chooses the device",
            "replay_buffer": "`agent.replay`",
            "replay_buffer_class, replay_buffer_kwargs": "`compile(replay=)`",
            "HerReplayBuffer, goal_selection_strategy, n_sampled_goal": (
                '`Replay(capacity, relabel=Hindsight("future", ratio=0.8))`'
            ),
            "optimize_memory_usage": "leave it out; each observation is always stored once",
            "num_timesteps": "`agent.steps`",
            "model": "`self.agent` in a callback",
            "locals": "the `logs` that an event of a callback receives",
            "use_sde, sde_sample_freq": "None",
            "MaskablePPO, ActionMasker, action_masks": "`noterl.PPO`; the environment's `info` holds `action_mask`",
        },
        "Hyperparameters": {
            "learning_rate, lr": "`compile(optimizer=1e-3)`, or `compile(optimizer=keras.optimizers.Adam(1e-3))`",
            "buffer_size": "`compile(replay=10_000)`, or `compile(replay=Replay(capacity))`",
            "train_freq": '`compile(update_every=4)`, in steps, or `compile(update_every="episode")`',
            "gradient_steps": "`compile(updates=)`",
            "tau": "`compile(target_update=0.005)`",
            "target_update_interval": "`compile(target_update=10_000)`",
            "exploration_fraction, exploration_initial_eps, exploration_final_eps": (
                "`compile(policy=LinearEpsGreedyPolicy(start, end, steps))`, in steps"
            ),
            "action_noise, NormalActionNoise": (
                "`compile(noise=GaussianWhiteNoiseProcess(sigma=, size=))`, on the scale of [-1, 1]"
            ),
            "OrnsteinUhlenbeckActionNoise": "`compile(noise=OrnsteinUhlenbeckProcess(theta=, sigma=, size=))`",
            "n_steps": (
                "`rollout_steps=` of PPO, A2C, TRPO, ACER; `compile(replay=Replay(capacity, n_step=))` of the others"
            ),
            "n_epochs": "`epochs=`",
            "n_critic_updates": "`epochs=` of TRPO",
            "cg_max_steps": "`cg_iterations=`",
            "line_search_max_iter, line_search_shrinking_factor": "`line_search_steps=`, `line_search_shrink=`",
            "sub_sampling_factor": "`fisher_stride=`; it affects Fisher-vector products only",
            "clip_range": "`clip=`",
            "clip_range_vf": "`value_clip=`",
            "ent_coef": "`entropy_coefficient=` of PPO, A2C, TRPO and ACER; `temperature=` of SAC",
            "vf_coef": "`value_coefficient=`",
            "target_policy_noise": "`target_noise=`",
            "max_grad_norm": "`compile(optimizer=keras.optimizers.Adam(1e-3, global_clipnorm=0.5))`",
            "use_rms_prop, rms_prop_eps": "`compile(optimizer=keras.optimizers.RMSprop(7e-4, epsilon=1e-10))`",
        },
        "Callbacks": {
            "BaseCallback, EventCallback, ConvertCallback": "`Callback`, `LambdaCallback`",
            "CallbackList": "a plain list",
            "CheckpointCallback": '`Checkpoint(path, save_freq, unit="steps")`',
            "save_path, name_prefix": "`Checkpoint(path)`",
            "eval_env": "`Evaluate(env)`",
            "eval_freq": '`Evaluate(every=, unit="steps")`',
            "best_model_save_path, callback_on_new_best": "`Evaluate(on_best=)`",
            "EvalCallback": '`Evaluate(env, every=5_000, unit="steps", episodes=)`',
            "StopTrainingOnRewardThreshold": '`EarlyStopping(1, threshold, monitor="evaluation_reward_mean")`',
            "StopTrainingOnNoModelImprovement": '`EarlyStopping(1, patience=, monitor="evaluation_reward_mean")`',
            "StopTrainingOnMaxEpisodes": "`fit(episodes=)`",
            "EveryNTimesteps": '`every = Every(n, "steps")` and `on_due` of a `Callback`',
            "ProgressBarCallback, LogEveryNTimesteps": "`ProgressBar`, `EpisodePrinter`",
            "WandbCallback": "`WandbLogger`",
            "TrialEvalCallback": "`OptunaPruning`",
            "VecVideoRecorder": "`RecordVideo`",
            "tensorboard_log, set_logger": "`CSVLogger`, `JSONLogger` or `TensorBoard`, in `fit(callbacks=[...])`",
            "logger": "`logs[name] = value` at the end of an episode",
            "_on_training_start, on_training_start": "`on_train_begin`",
            "_on_training_end, on_training_end": "`on_train_end`",
            "_on_step, on_step": "`on_step_end`; `agent.stop(reason)` instead of returning False",
            "_on_rollout_start, on_rollout_start": "None; `on_batch_begin` precedes an update",
            "_on_rollout_end, on_rollout_end": "None; `on_batch_end` follows an update",
        },
    },
    "Keras": {
        "Model": {
            "Model, Sequential": "`noterl.DQN(env, network=model)`, or a subclass of `noterl.Agent`",
            "metrics, weighted_metrics, loss_weights": "leave it out; `update(batch)` returns the metrics",
            "loss": "the algorithm has the loss; to change it, override `loss(batch)`",
            "run_eagerly": "`compile(jit_compile=False)`",
            "epochs": "`fit(episodes=)`",
            "steps_per_epoch": "`fit(steps=)`",
            "initial_epoch": "leave it out; a second `fit` always continues",
            "x, y": "an environment takes the place of the data: `fit(env)`",
            "validation_data, validation_split, validation_freq": "`fit(callbacks=[Evaluate(every=, episodes=)])`",
            "predict_on_batch": "`act(observations)`",
            "train_step": "`update(batch)`",
            "train_on_batch": "None; `fit(steps=)` makes the updates",
            "compute_loss": "`loss(batch)`",
            "load_model": "`noterl.load(path)`, or `restore(path)` of an agent with layers of your own",
            "register_keras_serializable": "`noterl.register`, or `noterl.load(path, custom_objects=)`",
            "layers, get_layer, count_params": "`networks()`, a dict; each network has them",
            "trainable_variables, trainable_weights": "`trained_variables()`",
        },
        "Callbacks": {
            "on_epoch_begin": "`on_episode_begin`",
            "on_epoch_end": "`on_episode_end`",
            "on_train_batch_begin": "`on_batch_begin`",
            "on_train_batch_end": "`on_batch_end`",
            "on_test_begin": "`on_evaluate_begin`",
            "on_test_end": "`on_evaluate_end`",
            "filepath": "`Checkpoint(path)`",
            "backup_dir": "`BackupAndRestore(path)`",
            "ModelCheckpoint, OrbaxCheckpoint": "`Checkpoint`, which saves the whole agent",
            "ProgbarLogger": "`ProgressBar`",
            "RemoteMonitor": "None; use Keras's",
            "SwapEMAWeights": "None; use Keras's",
        },
    },
    "gymnasium": {
        "Environments": {
            "make": '`noterl.DQN("CartPole-v1")`, or `noterl.DQN(gymnasium.make(...))`',
            "make_vec, SyncVectorEnv": "`fit(num_envs=)`",
            "AsyncVectorEnv": "`fit(num_envs=, workers=)`, or a `gymnasium.vector.AsyncVectorEnv` as `env`",
            "render_mode, max_episode_steps": "an argument of `gymnasium.make`: pass the environment as `env`",
            "step, reset": "`fit` and `evaluate` step the environments; `act(observation)` returns an action",
            "render": "`animate(path)`",
            "RecordEpisodeStatistics": "leave it out; the logs hold `reward` and `length` of each episode",
            "NormalizeObservation, NormalizeReward": "`normalize_observation=True, normalize_reward=True`",
            "FrameStackObservation": "`noterl.envs.FrameStack(env, 4)` and `Replay(capacity, frame_stack=4)`",
        },
    },
}

_METHODS = ("compile", "fit", "evaluate")


def hint(word: str) -> str | None:
    """Return what replaces a word of another library in noterl; None if no table has the word.

    Example:
    >>> from noterl.utils.words import hint
    >>> hint("n_epochs")
    "Stable-Baselines3's n_epochs in noterl: epochs="
    """
    for library, sections in TABLES.items():
        for rows in sections.values():
            for words, line in rows.items():
                if word in words.split(", "):
                    return f"{library}'s {word} in noterl: {line.replace('`', '')}"
    return None


def find_again(owner: Any, name: str) -> Any:
    """Raise the error of an attribute that `owner` does not have, or whose property has raised; for `__getattr__`."""
    if hasattr(type(owner), name):
        return object.__getattribute__(owner, name)  # raises the error of the property again
    raise missing_attribute(owner, name, f"{type(owner).__name__!r} object")


def missing_attribute(owner: Any, name: str, described: str) -> AttributeError:
    """Return the AttributeError for a missing name; its message has the replacement of another library's name."""
    found = hint(name)
    message = f"{described} has no attribute {name!r}" + (f". {found}" if found else "")
    return AttributeError(message, name=name, obj=owner)


def markdown(library: str, section: str) -> str:
    """Return the table of one section for the migration page of a library."""
    rows = [f"| {library} | noterl |", "| --- | --- |"]
    for words, line in TABLES[library][section].items():
        rows.append(f"| {', '.join(f'`{word}`' for word in words.split(', '))} | {line} |")
    return "\n".join(rows) + "\n"


def explain_keyword(
    name: str, value: Any, known: Iterable[str], elsewhere: Mapping[str, Iterable[str]] | None = None
) -> str:
    """Return advice on what to write in place of a keyword that a function does not have.

    Args:
        name: the keyword.
        value: its value, which may be a word of another library too, such as "MlpPolicy".
        known: the arguments of the function.
        elsewhere: the arguments of related functions, by function name.
    """
    advice = [
        _hint_of_value(value),
        *(f"{name} is an argument of {function}" for function, names in (elsewhere or {}).items() if name in names),
        _nearest(name, known, 0.85),
        hint(name),  # before names that are only somewhat similar
        _nearest(name, known, 0.5),
        f"its arguments are {', '.join(known)}",
    ]
    return next(filter(None, advice))


def explain_name(name: str, known: Iterable[str]) -> str:
    """Return advice on what to write in place of a name that is not one of the known names."""
    return hint(name) or _nearest(name, known, 0.7) or f"the names are {', '.join(known)}"


def warn_of_unknown_events(callback: Any, base: type, stacklevel: int) -> None:
    """Warn of the methods of a callback that are named like an event but are never called.

    Args:
        callback: the callback.
        base: the base class of callbacks, which has a method for each event.
        stacklevel: as in `warnings.warn`, from the caller of this function.
    """
    kind = type(callback)
    for name in dir(kind):
        foreign = name.startswith("_on_") and hint(name)
        if (name.startswith("on_") or foreign) and callable(getattr(kind, name)) and not hasattr(base, name):
            events = [event for event in dir(base) if event.startswith("on_")]
            warnings.warn(
                f"{kind.__name__}.{name} is never called, because it is not an event; {explain_name(name, events)}",
                UserWarning,
                stacklevel=stacklevel + 1,
            )


def explain_constructor(error: TypeError, cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return a message that names the class, for wrong arguments of its constructor; None for other errors.

    Args:
        error: what the constructor raised.
        cls: the class that was called.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """
    text, name = str(error), cls.__name__
    if text.startswith("missing a required argument"):
        return f"{name}() is {text}"
    if text == "too many positional arguments":
        advice = next(filter(None, map(_hint_of_value, args)), "use keywords")
        return f"{name}() got {text}, {', '.join(map(repr, args))}: {advice}"
    match = re.match(r"(?:.*?(\w+)\.__init__\(\) )?got an unexpected keyword argument", text)
    if match is None or match[1] not in {None, *(base.__name__ for base in cls.__mro__)}:
        return None
    known = _arguments(cls)
    for keyword, value in kwargs.items():
        if keyword not in known:
            advice = explain_keyword(keyword, value, known, _arguments_of_methods(cls))
            return f"{name}() got an unexpected keyword argument {keyword!r}: {advice}"
    return None


def explain_arguments(method: Method) -> Method:
    """Decorate a method so that an unknown keyword raises a TypeError with advice on what to write instead.

    The error names the class of the object; Python would name the class that defines the method. A method that accepts
    any keyword is returned unchanged.
    """
    if any(each.kind is each.VAR_KEYWORD for each in inspect.signature(method).parameters.values()):
        return method
    known = _arguments(method)

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name, value in kwargs.items():
            if name not in known:
                kind = type(self)
                elsewhere = {f"{kind.__name__}(...)": _arguments(kind), **_arguments_of_methods(kind)}
                caller = kind.__name__ + ("" if method.__name__ == "__init__" else f".{method.__name__}")
                raise TypeError(
                    f"{caller}() got an unexpected keyword argument {name!r}: "
                    f"{explain_keyword(name, value, known, elsewhere)}"
                )
        return method(self, *args, **kwargs)

    return checked  # type: ignore[return-value]


def _hint_of_value(value: Any) -> str | None:
    """Return the hint for a value such as "MlpPolicy"."""
    return hint(value) if isinstance(value, str) and value.endswith("Policy") else None


def _nearest(name: str, known: Iterable[str], similarity: float) -> str | None:
    """Return a question with the known name that is nearest to `name`; None if none is similar enough."""
    found = difflib.get_close_matches(name, known, 1, similarity)
    return f"did you mean {found[0]!r}?" if found else None


def _arguments(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.name != "self" and each.kind is not each.VAR_KEYWORD]


def _arguments_of_methods(cls: type) -> dict[str, list[str]]:
    return {name: _arguments(getattr(cls, name)) for name in _METHODS if hasattr(cls, name)}
