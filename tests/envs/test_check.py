"""noterl.envs.check: each fault of an environment is reported, and nothing else."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from noterl.collect import ScalarLanes
from noterl.envs import check, resolve
from noterl.random import Generators
from tests.support import doubles
from tests.support.doubles import CountingEnv, Gym021Env, Gym026Env, RandomWalkEnv, StatefulEnv

pytestmark = pytest.mark.backend_free

CARTPOLE = "CartPole-v1"


def broken(change):
    """Return a factory of counting environments that `change` has broken."""

    def factory():
        env = CountingEnv(length=4)
        change(env)
        return env

    return factory


def stepping(**changed):
    """Return a change that replaces values that `step` returns."""

    def change(env):
        names = ("observation", "reward", "terminated", "truncated", "info")
        step = env.step
        env.step = lambda action: tuple({**dict(zip(names, step(action), strict=True)), **changed}.values())

    return change


def observing(function):
    def change(env):
        observation = env._observation
        env._observation = lambda: function(observation())

    return change


def space(name, value):
    return lambda env: setattr(env, name, value)


def without_options(env):
    reset = env.reset
    env.reset = lambda seed=None: reset(seed=seed)


def constant(observation_space, value):
    def change(env):
        env.observation_space = observation_space
        env._observation = lambda: value

    return change


def play_lane(factory):
    """Play as `fit` does."""
    source = resolve(factory)
    lanes = ScalarLanes(source, 1, Generators(0))
    for step in range(30):
        if lanes.idle():
            lanes.reset(0, step, step)
        lanes.begin_round(np.zeros(1, np.int64))
        (transition,) = lanes.tick(step)
        if transition.terminated or transition.truncated:
            lanes.ledger.finish(0)


FAULTS = [
    (observing(lambda x: x + np.float32(np.nan)), "at step 0 is not finite: array([nan, nan]"),
    (observing(lambda x: x[:1]), "has the shape (1,)"),
    (observing(lambda x: {"a": x}), "has the shape ()"),
    (stepping(reward=float("nan")), "reward of environment 0 at step 1 is not finite: nan (episode 0, step 1)"),
    (stepping(reward=np.inf), "is not finite: inf"),
    (stepping(reward=np.zeros(2)), "reward of environment 0 at step 1 must be a number"),
    (stepping(reward=None), "reward of environment 0 at step 1 must be a number"),
    (stepping(reward="1"), "reward of environment 0 at step 1 must be a number"),
    (stepping(more=1), "step must return (observation,"),
    (space("step", lambda _: (np.zeros(2, np.float32), 0.0, False, {})), "step must return (observation,"),
    (space("reset", lambda **_: np.zeros(2, np.float32)), "reset must return (observation, info)"),
    (space("reset", lambda: 1 / 0), "TypeError"),
    (space("action_space", spaces.Text(3)), "action_space must be a Box"),
    (space("observation_space", spaces.Discrete(3, start=1)), "observation_space must start at zero"),
    (space("observation_space", None), "the environment has no observation_space"),
    (space("observation_space", spaces.Discrete(3)), "has the shape (2,)"),
    (space("observation_space", spaces.Dict(a=spaces.Discrete(3))), "(episode 0, reset)"),
]

ACCEPTED = [
    observing(lambda x: x.astype(np.float64)),
    observing(list),
    observing(lambda x: x.astype(np.float16)),
    stepping(terminated=0),
    stepping(truncated=np.array([False])),
    stepping(info=None),
    space("reset", lambda **_: (np.zeros(2, np.float32), 3)),
    without_options,
]


class TestCheck:
    def test_good_environments_have_no_errors(self):
        for env in (CARTPOLE, "Pendulum-v1", "FrozenLake-v1", doubles.ImageEnv, Gym021Env, Gym026Env):
            report = check(env, steps=300)
            assert report.ok, report
            assert report.steps > 0
        assert check(CARTPOLE).resumable == "replay"
        assert check(CARTPOLE).warnings == []

    def test_report_counts_episodes_and_steps(self):
        report = check(CountingEnv(length=5), episodes=4)
        assert (report.episodes, report.steps) == (4, 20)

    @pytest.mark.parametrize(("change", "words"), FAULTS)
    def test_fault_is_an_error_here_and_in_training(self, change, words):
        report = check(broken(change))
        assert len(report.errors) == 1
        assert words in report.errors[0]
        with pytest.raises(Exception):  # noqa: B017  (whatever the environment raises, or a ValueError)
            play_lane(broken(change))

    @pytest.mark.filterwarnings("ignore:.* is outside of the bounds:RuntimeWarning")
    @pytest.mark.parametrize("change", ACCEPTED)
    def test_what_training_accepts_has_no_errors(self, change):
        report = check(broken(change))
        assert report.ok, report
        play_lane(broken(change))

    @pytest.mark.parametrize(
        ("observation_space", "value", "words"),
        [
            (spaces.Discrete(3), 4, "observation of environment 0 at step 0 is not in Discrete(3): 4"),
            (spaces.Dict(a=spaces.Discrete(2)), {"b": 1}, "has no key 'a'"),
            (spaces.Box(0, 1, (2, 2)), np.zeros(4, np.float32), "has the shape (4,)"),
            (spaces.Box(0, 1, (2,)), np.array(["a", "b"]), "(episode 0, reset)"),
        ],
    )
    def test_value_that_is_none_of_the_space_is_an_error(self, observation_space, value, words):
        change = constant(observation_space, value)
        assert words in check(broken(change)).errors[0]
        with pytest.raises(Exception):  # noqa: B017  (see above)
            play_lane(broken(change))

    @pytest.mark.parametrize(
        ("observation_space", "value"),
        [
            (spaces.MultiDiscrete([2, 3]), np.array([1, 3])),
            (spaces.MultiBinary(2), np.array([0, 2], np.int8)),
            (spaces.Dict(a=spaces.Box(0, 1, (1,))), {"a": np.float32([2])}),
            (spaces.Box(0, 1, (2, 2)), np.float32([[0, 0], [0, 7]])),
            (spaces.Box(0, 1, (2,)), np.float32([-3, 0])),
        ],
    )
    def test_observation_outside_of_the_bounds_is_a_warning_here_and_in_training(self, observation_space, value):
        change = constant(observation_space, value)
        report = check(broken(change))
        assert report.ok, report
        assert sum("at step 0 is outside of the bounds" in text for text in report.warnings) == 1, report
        with pytest.warns(RuntimeWarning, match="bounds"):
            play_lane(broken(change))

    def test_errors_the_environment_raises_are_reported(self):
        report = check(lambda: doubles.RaisingEnv(at=7))
        assert report.errors == ["EnvironmentBroke: step 7 broke (episode 1, step 2)"]
        report = check(lambda: doubles.RaisingEnv(at=2, on="reset"))
        assert report.errors == ["EnvironmentBroke: reset 2 broke (episode 1, reset)"]

    def test_nan_is_reported_with_its_step(self):
        report = check(lambda: doubles.NotANumberEnv(at=3))
        fault = "observation of environment 0 at step 3 is not finite: array([nan, nan], dtype=float32)"
        assert report.errors == [f"{fault} (episode 0, step 3)"]
        report = check(lambda: doubles.NotANumberEnv(at=8, where="reward"))
        assert report.errors == ["reward of environment 0 at step 3 is not finite: nan (episode 1, step 3)"]

    def test_endless_episodes_are_a_warning(self):
        report = check(broken(lambda env: setattr(env, "length", 10**9)), steps=20)
        assert report.ok
        assert any("no episode ended within 20 steps" in text for text in report.warnings)
        assert not any("no episode" in text for text in check(CountingEnv(), steps=20).warnings)

    def test_reset_that_is_ignored_in_the_middle_of_an_episode_is_a_warning(self):
        class Stubborn(RandomWalkEnv):
            running, start = False, 0

            def reset(self, *, seed=None, options=None):
                if not self.running:
                    return super().reset(seed=seed)
                return self._observation(), {}

            def step(self, action):
                result = super().step(action)
                self.running = not (result[2] or result[3])
                return result

        report = check(Stubborn)
        assert report.resumable is None
        assert any("differ from step 0 on" in text for text in report.warnings), report

    def test_ignored_seed_is_a_warning(self):
        class Unseeded(RandomWalkEnv):
            def reset(self, *, seed=None, options=None):
                return super().reset(seed=None)

        report = check(Unseeded)
        assert report.ok
        assert report.resumable is None
        assert any("differ from step 0 on" in text for text in report.warnings)

    def test_unseeded_noise_is_a_warning(self):
        class Noisy(RandomWalkEnv):
            other = np.random.default_rng()

            def step(self, action):
                return super().step(action + self.other.normal())

        report = check(Noisy)
        assert report.resumable is None
        assert any("differ from step 1 on" in text for text in report.warnings), report

    def test_randomness_at_construction_is_a_warning(self):
        class RandomAtConstruction(RandomWalkEnv):
            def __init__(self):
                super().__init__()
                self.offset = float(np.random.default_rng().normal())

            def _observation(self):
                return super()._observation() + np.float32(self.offset)

        report = check(RandomAtConstruction)
        assert report.resumable is None
        assert any("a second instance with the same seed and actions differs" in text for text in report.warnings)

    def test_state_that_outlives_reset_is_a_warning(self):
        report = check(CountingEnv)
        assert report.resumable is None
        assert any("differ from step 0 on" in text for text in report.warnings)

    def test_state_methods_make_resumable(self):
        report = check(StatefulEnv)
        assert (report.ok, report.resumable) == (True, "state"), report
        assert check(StatefulEnv()).resumable == "state"

    def test_state_makes_resumable_what_replay_cannot(self):
        class Counted(CountingEnv):
            def get_state(self):
                return (self.episode, self.step_number)

            def set_state(self, state):
                self.episode, self.step_number = state

        assert check(Counted).resumable == "state"

    def test_incomplete_state_is_an_error(self):
        class IncompleteState(StatefulEnv):
            def set_state(self, state):
                super().set_state({**state, "position": 0.0})

        report = check(IncompleteState)
        assert report.resumable is None
        assert any("set_state does not restore" in text for text in report.errors)

    def test_state_method_that_raises_is_an_error(self):
        class Raising(StatefulEnv):
            def get_state(self):
                raise KeyError("position")

        assert any("KeyError" in text and "(get_state or set_state)" in text for text in check(Raising).errors)

    def test_state_that_cannot_be_saved_is_a_warning(self):
        class Unspeakable(StatefulEnv):
            def get_state(self):
                return {**super().get_state(), "file": sys.stdout}

        report = check(Unspeakable)
        assert report.resumable is None
        assert any("cannot be saved" in text for text in report.warnings)

    def test_factory_of_one_object_is_an_error(self):
        env = RandomWalkEnv()
        assert any("the same" in text and "again" in text for text in check(lambda: env).errors)

    def test_time_limit_returned_as_termination_is_a_warning(self):
        report = check(lambda: CountingEnv(length=60))
        assert any("terminated after exactly 60 steps" in text for text in report.warnings)
        report = check(lambda: CountingEnv(length=60, truncate=True))
        assert not any("terminated after exactly" in text for text in report.warnings)

    def test_same_report_twice(self):
        first, second = check(RandomWalkEnv, seed=3), check(RandomWalkEnv, seed=3)
        assert (first.steps, first.errors, first.warnings) == (second.steps, second.errors, second.warnings)

    def test_users_environment_stays_open_and_the_generator_of_its_space_unchanged(self):
        env = CountingEnv()
        env.action_space.seed(1)
        before = env.action_space.np_random.bit_generator.state
        check(env)
        assert env.closed == 0
        assert env.action_space.np_random.bit_generator.state == before

    def test_report_as_text(self):
        text = str(check(broken(stepping(reward=np.nan))))
        assert "not ok" in text
        assert "  error: reward of environment 0 at step 1 is not finite: nan (episode 0, step 1)" in text
        text = str(check(CARTPOLE))
        assert "ok" in text.splitlines()[0]
        assert "restored exactly, by repeating the actions since its reset" in text

    @pytest.mark.parametrize(
        "wrong", [{"episodes": 0}, {"steps": -1}, {"steps": 2.5}, {"seed": -1}, {"episodes": True}]
    )
    def test_bad_numbers_raise(self, wrong):
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be "):
            check(CARTPOLE, **wrong)

    def test_other_objects_raise(self):
        with pytest.raises(ValueError, match=r"^env must be .* got 3"):
            check(3)

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
    def test_vector_environment_has_no_errors(self, mode):
        report = check(lambda: doubles.branching_vector(3, mode), steps=90)
        assert report.ok, report
        assert report.autoreset_mode == mode
        assert report.steps == 90
        assert report.episodes > 3
        assert f"autoreset mode: {mode}" in str(report)

    @pytest.mark.parametrize(
        ("make", "resumable", "words"),
        [
            (lambda: SyncVectorEnv([lambda: gymnasium.make(CARTPOLE)] * 2), "replay", None),
            (lambda: SyncVectorEnv([doubles.StatefulEnv] * 2), "state", None),
            (lambda: SyncVectorEnv([doubles.CountingEnv] * 2), None, "differ from step 0 on"),
            (lambda: gymnasium.make_vec(CARTPOLE, 2, vectorization_mode="vector_entry_point"), "replay", None),
            (lambda: doubles.TogetherVectorEnv([doubles.CountingEnv] * 2), None, "differ from step 0 on"),
        ],
    )
    def test_report_names_how_a_vector_environment_is_restored(self, make, resumable, words):
        report = check(make, steps=60)
        assert (report.ok, report.resumable) == (True, resumable)
        assert len(report.warnings) == (words is not None)
        assert words is None or words in report.warnings[0]
        how = {"replay": "exactly, by repeating", "state": "exactly, by its own", None: "not exactly"}[resumable]
        assert f"an episode in progress is restored {how}" in str(report)

    def test_disabled_lanes_are_reset_by_mask(self):
        vector, masks = doubles.branching_vector(2, "Disabled"), []
        reset = vector.reset

        def watched(*, seed=None, options=None):
            masks.append(None if options is None else options["reset_mask"].tolist())
            return reset(seed=seed, options=options)

        vector.reset = watched
        report = check(vector, steps=40)
        played = masks[1 : masks.index(None, 1)]
        assert masks[0] is None
        assert sum(map(sum, played)) == report.episodes > 0
        assert masks.count(None) == 2, "it is played twice"

    @pytest.mark.parametrize(
        ("claimed", "actual", "words"),
        [
            ("NextStep", "SameStep", "the mode NextStep, the step after an end must be a reset"),
            ("SameStep", "NextStep", "the mode SameStep, infos['final_obs'] must hold"),
            (None, "NextStep", "metadata['autoreset_mode'] must be one of"),
        ],
    )
    def test_wrong_autoreset_mode_is_an_error(self, claimed, actual, words):
        vector = doubles.branching_vector(3, actual)
        vector.metadata["autoreset_mode"] = claimed
        assert any(words in text for text in check(vector).errors), check(vector)

    def test_values_of_a_vector_environment_are_checked(self):
        vector = doubles.branching_vector(2, "SameStep")
        step = vector.step
        vector.step = lambda actions: (step(actions)[0] - 5, np.zeros(3), *step(actions)[2:])
        assert check(vector).errors == ["rewards must be an array of shape (2,), got [0. 0. 0.] (step 1)"]
        vector.step = lambda actions: (step(actions)[0] * np.nan, *step(actions)[1:])
        assert "observation of environment 0 at step 1 is not finite" in check(vector).errors[0]


class Masked(CountingEnv):
    """Refuses illegal actions; 3 of 4 are legal, others in each step."""

    def __init__(self, legal=lambda step: np.arange(4) != step % 4, action_space=None):
        super().__init__(length=12)
        self.action_space = spaces.Discrete(4) if action_space is None else action_space
        self.legal, self.taken, self.count = legal, [], 0

    def reset(self, *, seed=None, options=None):
        self.count = 0
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "action_mask": self.legal(0)}

    def step(self, action):
        self.taken.append(action)
        for place in np.cumsum([0, *getattr(self.action_space, "nvec", [])[:-1]]) + action:
            assert self.legal(self.count)[int(place)], f"illegal action {action}"
        self.count += 1
        observation, reward, terminated, truncated, info = super().step(0)
        return observation, reward, terminated, truncated, {**info, "action_mask": self.legal(self.count)}


class TestActions:
    def test_they_have_the_types_that_fit_passes(self):
        env = Masked()
        assert check(env, steps=20).ok
        assert {type(action) for action in env.taken} == {int}
        source = resolve(Masked())
        lanes = ScalarLanes(source, 1, Generators(0))
        lanes.reset(0, 0, 0)
        lanes.fields.accept()
        lanes.begin_round(np.array([1]))
        lanes.tick(0)
        assert type(source.make(0).taken[0]) is int

    def test_environment_that_needs_an_int_is_ok(self):
        env = CountingEnv(length=4)
        step = env.step

        def strict(action):
            assert isinstance(action, int)
            return step(action)

        env.step = strict
        assert check(env).ok

    def test_environment_that_needs_a_numpy_scalar_is_reported(self):
        env = CountingEnv(length=4)
        step = env.step
        env.step = lambda action: step(action.item())
        assert "'int' object has no attribute 'item'" in check(env).errors[0]

    @pytest.mark.parametrize(
        ("legal", "space"),
        [
            (lambda step: np.arange(4) != step % 4, spaces.Discrete(4)),
            (lambda step: np.arange(4) == step % 4, spaces.Discrete(4)),
            (lambda step: np.array([step % 2, 1, 1 - step % 2, 1, 0], np.int8), spaces.MultiDiscrete([2, 3])),
        ],
    )
    def test_they_are_legal(self, legal, space):
        report = check(lambda: Masked(legal, space), steps=30)
        assert report.ok, report


@pytest.mark.parametrize(
    ("name", "value", "wrapper"),
    [
        ("observation_space", spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]), "wrappers.FlattenObservation"),
        ("action_space", spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]), "wrappers.TransformAction"),
        ("action_space", spaces.Dict({"a": spaces.Discrete(3)}), "wrappers.TransformAction"),
    ],
)
def test_space_that_no_agent_takes_is_an_error_that_names_a_wrapper(name, value, wrapper):
    assert wrapper in check(broken(space(name, value))).errors[0]


def test_blackjack_is_an_error_whose_advice_works():
    (text,) = check("Blackjack-v1").errors
    line = text.partition("wrap the environment: ")[2].partition(" (")[0]
    names = {"gymnasium": gymnasium, "env": gymnasium.make("Blackjack-v1")}
    exec(line, names)
    assert check(names["env"]).ok
