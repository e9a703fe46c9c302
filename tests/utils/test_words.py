"""Names of other libraries raise errors with noterl's line; errors for wrong keywords name the user's class."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Any

import pytest

import noterl
import noterl.callbacks
from noterl import migration
from noterl.callbacks.support.tunables import TUNABLES
from noterl.utils import words

pytestmark = pytest.mark.backends("torch")


def replacements() -> list[str]:
    """Return the replacement of each row of the migration tables."""
    return [
        line
        for library in migration.LIBRARIES
        for rows in migration.sections(library).values()
        for line in rows.values()
    ]


class TestTable:
    @pytest.mark.backend_free
    @pytest.mark.parametrize("library", migration.LIBRARIES)
    def test_each_word_is_in_one_row(self, library: str) -> None:
        sections = migration.sections(library).values()
        found = [word for rows in sections for key in rows for word in key.split(", ")]
        assert len(found) == len(set(found)) > 8
        command = r"(xagents |play )?" if library == "xagents" else ""
        assert all(re.fullmatch(command + r"(--)?\w+(-\w+)*", word) for word in found)

    @pytest.mark.backend_free
    @pytest.mark.parametrize("library", migration.LIBRARIES)
    def test_each_word_is_answered_with_its_row(self, library: str) -> None:
        for rows in migration.sections(library).values():
            for key, line in rows.items():
                for word in key.split(", "):
                    plain = re.sub(r"\[(.+?)\]\(.+?\)", r"\1", line).replace("`", "")
                    assert f" in noterl: {plain}" in words.hint(word), word

    @pytest.mark.backend_free
    def test_tables_are_read_by_the_first_error(self) -> None:
        program = (
            "import sys, noterl.callbacks\n"
            "assert 'noterl.migration' not in sys.modules\n"
            "try: noterl.callbacks.EvalCallback\n"
            "except AttributeError: pass\n"
            "assert 'noterl.migration' in sys.modules"
        )
        subprocess.run([sys.executable, "-c", program], check=True)

    @pytest.mark.backend_free
    def test_word_of_several_libraries_has_a_line_of_each(self) -> None:
        assert words.hint("weights") == words.hint("--weights")
        assert words.hint("tau") == (
            "Stable-Baselines3's tau in noterl: compile(target_update=0.005). "
            "xagents's --tau in noterl: compile(target_update=), a float"
        )

    @pytest.mark.backend_free
    def test_hint_contains_library_word_and_line(self) -> None:
        assert words.hint("learn") == "Stable-Baselines3's learn in noterl: fit(steps=), exact; or fit(episodes=)"
        assert words.hint("on_epoch_end") == "Keras's on_epoch_end in noterl: on_episode_end"
        assert words.hint("hidden") is None

    def test_keywords_in_the_lines_exist(self) -> None:
        """Each `name=` that a line passes to a method of agents or to a class of noterl is one of its arguments."""
        functions: dict[str, Any] = {
            **{name: getattr(noterl.PPO, name) for name in ("compile", "fit", "evaluate", "act", "save")},
            **{name: getattr(noterl, name) for name in ("Replay", "load", "PPO", "DQN")},
            **{name: getattr(noterl.callbacks, name) for name in ("Evaluate", "EarlyStopping", "Checkpoint")},
            **{name: getattr(noterl.policies, name) for name in ("LinearEpsGreedyPolicy",)},
            **{name: getattr(noterl.noise, name) for name in ("GaussianWhiteNoiseProcess", "OrnsteinUhlenbeckProcess")},
        }
        checked = 0
        for line in replacements():
            for name, arguments in re.findall(r"(\w+)\(((?:[^()]|\([^()]*\))*)\)", line):
                if name in functions:
                    known = inspect.signature(functions[name]).parameters
                    for keyword in re.findall(r"(?:^|, )(\w+)=", re.sub(r"\(.*?\)", "", arguments)):
                        assert keyword in known, line
                        checked += 1
        assert checked > 25

    def test_arguments_in_the_lines_exist(self) -> None:
        """A line such as `clip=` names an argument of a built-in agent."""
        agents = (
            noterl.DQN,
            noterl.PPO,
            noterl.A2C,
            noterl.TRPO,
            noterl.ACER,
            noterl.DDPG,
            noterl.TD3,
            noterl.SAC,
            noterl.MADDPG,
        )
        known = {name for agent in agents for name in inspect.signature(agent).parameters}
        callbacks = (noterl.callbacks.Adapt, noterl.callbacks.EarlyStopping, noterl.callbacks.Export)
        known |= {name for callback in callbacks for name in inspect.signature(callback).parameters}
        for method in (noterl.Agent.compile, noterl.Agent.fit):
            known |= set(inspect.signature(method).parameters)
        known |= {*TUNABLES, "every", "window", "KERAS_BACKEND"}  # adaptive callbacks take tunables by name
        for line in replacements():
            assert set(re.findall(r"`(\w+)=[^=`]*`", line)) <= known, line


class TestConstructor:
    @pytest.mark.parametrize(
        ("agent", "arguments", "expected"),
        [
            ("PPO", {"n_steps": 8}, r"PPO\(\) .*'n_steps'.*rollout_steps="),
            ("PPO", {"ent_coef": 0.1}, r"PPO\(\) .*'ent_coef'.*entropy_coefficient="),
            ("DQN", {"learning_rate": 0.1}, r"DQN\(\) .*'learning_rate'.*compile\(optimizer=keras"),
            ("SAC", {"lr": 0.1}, r"SAC\(\) .*'lr'.*compile\(optimizer="),
            ("SAC", {"device": "cuda"}, r"SAC\(\) .*'device'.*backend"),
            ("DQN", {"policy": "MlpPolicy"}, r"DQN\(\) .*'policy'.*noterl\.PPO\(env\)"),
            ("DQN", {"batch_size": 8}, r"DQN\(\) .*'batch_size': .*compile"),
            ("DQN", {"verbose": 1}, r"DQN\(\) .*'verbose': .*fit"),
            ("PPO", {"rollout_step": 8}, r"PPO\(\) .*'rollout_step': .*'rollout_steps'"),
            ("PPO", {"hiden": (8,)}, r"PPO\(\) .*'hiden': did you mean 'hidden'"),
            ("PPO", {"lam": 0.9}, r"PPO\(\) .*xagents's --lam .*gae_lambda="),
            ("TRPO", {"actor_iterations": 9}, r"--actor-iterations .*line_search_steps="),
            ("DQN", {"quux": 1}, r"DQN\(\) .*'quux': .*env, double, "),
        ],
    )
    def test_wrong_keyword_is_explained(self, agent: str, arguments: dict[str, Any], expected: str) -> None:
        with pytest.raises(TypeError, match=expected):
            getattr(noterl, agent)("CartPole-v1", **arguments)

    def test_error_names_the_subclass_that_was_called(self) -> None:
        class Mine(noterl.PPO):
            def __init__(self, env: Any, *, depth: int = 1, **options: Any) -> None:
                super().__init__(env, **options)

        with pytest.raises(TypeError, match=r"Mine\(\) .*'detph': did you mean 'depth'"):
            Mine("CartPole-v1", detph=2)

    @pytest.mark.parametrize("args", [("MlpPolicy", "CartPole-v1"), ("CartPole-v1", "CnnPolicy")])
    def test_policy_name_as_positional_argument_is_explained(self, args: tuple[str, str]) -> None:
        with pytest.raises(TypeError, match=r"PPO\(\) .*noterl\.PPO\(env\)"):
            noterl.PPO(*args)

    @pytest.mark.backend_free
    def test_missing_argument_is_reported_under_the_class(self) -> None:
        with pytest.raises(TypeError, match=r"^OrnsteinUhlenbeckProcess\(\) .*'theta'"):
            noterl.noise.OrnsteinUhlenbeckProcess()

    def test_keyword_that_a_class_consumes_is_accepted(self) -> None:
        class Consuming(noterl.DQN):
            def __init__(self, env: Any, **sizes: Any) -> None:
                super().__init__(env, hidden=(sizes["width"],))

        assert Consuming("CartPole-v1", width=4).get_config() == {"env": "CartPole-v1", "width": 4}

    def test_error_inside_a_constructor_is_kept(self) -> None:
        def build(size: int) -> None: ...

        class Broken(noterl.DQN):
            def __init__(self, env: Any, **options: Any) -> None:
                build(**options)

        with pytest.raises(TypeError, match=r"build\(\) .*'width'"):
            Broken("CartPole-v1", width=4)

    @pytest.mark.backend_free
    def test_other_parts_are_explained_too(self) -> None:
        with pytest.raises(TypeError, match=r"Replay\(\) .*'n_stpe'.*'n_step'"):
            noterl.Replay(100, n_stpe=3)
        with pytest.raises(TypeError, match=r"EpsGreedyQPolicy\(\) .*'epsilon': .*eps"):
            noterl.policies.EpsGreedyQPolicy(epsilon=0.1)


class TestMethods:
    @pytest.mark.parametrize(
        ("method", "arguments", "expected"),
        [
            ("fit", {"total_timesteps": 9}, r"DQN\.fit\(\) .*'total_timesteps'.*fit\(steps=\)"),
            ("fit", {"epochs": 9}, r"DQN\.fit\(\) .*'epochs'.*fit\(episodes=\)"),
            ("fit", {"batch_size": 9}, r"DQN\.fit\(\) .*'batch_size': .*compile"),
            ("fit", {"step": 9}, r"DQN\.fit\(\) .*'step': did you mean 'steps'"),
            ("fit", {"episode": 9}, r"DQN\.fit\(\) .*'episode': did you mean 'episodes'"),
            ("compile", {"learning_rate": 9}, r"DQN\.compile\(\) .*'learning_rate'.*compile\(optimizer="),
            ("fit", {"pool_network": True}, r"DQN\.fit\(\) .*pool_network .*workers="),
            ("compile", {"update_steps": 9}, r"DQN\.compile\(\) .*update_steps .*target_update="),
            ("compile", {"pool_size": 9}, r"DQN\.compile\(\) .*Replay\(pool_size\)"),
            ("compile", {"gamma": 9}, r"DQN\.compile\(\) .*'gamma': .*DQN\(\.\.\.\)"),
            ("compile", {"metrics": []}, r"DQN\.compile\(\) .*'metrics'.*update\(batch\)"),
            ("evaluate", {"n_eval_episodes": 9}, r"DQN\.evaluate\(\) .*'n_eval_episodes'.*\(episodes="),
        ],
    )
    def test_wrong_keyword_is_explained(self, method: str, arguments: dict[str, Any], expected: str) -> None:
        with pytest.raises(TypeError, match=expected):
            getattr(noterl.DQN("CartPole-v1", hidden=(4,)), method)(**arguments)

    def test_keyword_of_the_constructor_and_of_another_library_names_both(self) -> None:
        expected = r"epochs is an argument of PPO\(\.\.\.\)\. Keras's epochs in noterl: fit\(episodes=\)"
        with pytest.raises(TypeError, match=expected):
            noterl.PPO("CartPole-v1", hidden=(4,)).fit(epochs=3)

    def test_signatures_are_those_of_the_methods(self) -> None:
        assert list(inspect.signature(noterl.Agent.fit).parameters)[:4] == ["self", "env", "episodes", "steps"]
        assert "kwargs" not in inspect.signature(noterl.Agent.compile).parameters


class TestAttributes:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("train", r".*Note_rl's train in noterl: fit\(episodes=\)"),
            ("set", r".*Note_rl's set in noterl: compile"),
            ("learn", r".*fit\(steps=\)"),
            ("predict", r".*act\(observation"),
            ("set_env", r".*fit\(env\)"),
            ("x_y", "$"),
        ],
    )
    def test_foreign_attribute_of_an_agent_is_explained(self, name: str, expected: str) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(4,))
        with pytest.raises(AttributeError, match=rf"^'DQN' .*'{name}'{expected}"):
            getattr(agent, name)
        assert not hasattr(agent, name)

    def test_foreign_attribute_of_a_class_is_explained(self) -> None:
        with pytest.raises(AttributeError, match=r"'SAC' .*'load'.*noterl\.load"):
            noterl.SAC.load("sac")

    def test_error_of_a_property_is_kept(self) -> None:
        class Mine(noterl.DQN):
            @property
            def broken(self) -> int:
                return self.nothing_here

        with pytest.raises(AttributeError, match="nothing_here"):
            Mine("CartPole-v1", hidden=(4,)).broken  # noqa: B018

    @pytest.mark.backend_free
    @pytest.mark.parametrize(
        ("module", "name", "expected"),
        [
            ("noterl.callbacks", "EvalCallback", r"Evaluate\(env, every="),
            ("noterl.callbacks", "ModelCheckpoint", "Checkpoint"),
            ("noterl", "make_vec_env", r"fit\(num_envs=\)"),
            ("noterl", "make", r"noterl\.DQN\(\"CartPole-v1\"\)"),
        ],
    )
    def test_foreign_name_of_a_module_is_explained(self, module: str, name: str, expected: str) -> None:
        with pytest.raises(AttributeError, match=rf"'{module}' .*'{name}'.*{expected}"):
            getattr(noterl.callbacks if module == "noterl.callbacks" else noterl, name)
        with pytest.raises(ImportError, match=rf"'{module}' .*'{name}'.*{expected}"):
            exec(f"from {module} import {name}")

    @pytest.mark.backend_free
    @pytest.mark.parametrize("name", ["callback", "random"])
    def test_module_with_the_name_of_a_foreign_word_can_be_imported(self, name: str) -> None:
        program = f"from noterl import {name}; assert {name}.__name__ == 'noterl.{name}'"
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_foreign_attribute_of_a_finder_is_explained(self) -> None:
        finder = noterl.finders.LRFinder(noterl.DQN("CartPole-v1", hidden=(4,)))
        with pytest.raises(AttributeError, match=r"^'LRFinder' .*'lock'.*ParallelFinder\.results"):
            finder.lock  # noqa: B018

    @pytest.mark.backend_free
    def test_unknown_name_of_a_module_raises_as_in_python(self) -> None:
        with pytest.raises(ImportError, match="cannot import name 'Quux' from 'noterl'"):
            exec("from noterl import Quux")
        assert not hasattr(noterl, "EvalCallback")


class TestCallbacks:
    @pytest.mark.backend_free
    @pytest.mark.parametrize(
        ("name", "arguments", "expected"),
        [
            (
                "Checkpoint",
                {"save_param_only": True},
                r"Checkpoint\(\) .*save_weights_only=",
            ),
            ("Evaluate", {"eval_freq": 9}, r"Evaluate\(\) .*'eval_freq'.*every="),
            ("Checkpoint", {"filepath": "x"}, r"Checkpoint\(\) .*'filepath'.*Checkpoint\(path\)"),
            ("EarlyStopping", {"criterion": 9, "patince": 3}, r"EarlyStopping\(\) .*did you mean 'patience'"),
        ],
    )
    def test_wrong_keyword_of_a_callback_is_explained(
        self, name: str, arguments: dict[str, Any], expected: str
    ) -> None:
        with pytest.raises(TypeError, match=expected):
            getattr(noterl.callbacks, name)(**arguments)

    @pytest.mark.backend_free
    def test_error_names_the_subclass_and_other_keywords_are_kept(self) -> None:
        class Mine(noterl.callbacks.StopOnSteps):
            def __init__(self, **options: Any) -> None:
                super().__init__(**options)

        assert Mine(steps=3).steps == 3
        with pytest.raises(TypeError, match=r"Mine\(\) .*'step': did you mean 'steps'"):
            Mine(step=3)
        assert list(inspect.signature(noterl.callbacks.StopOnSteps).parameters) == ["steps"]
