"""Heads with a distribution: samples, log-probabilities and entropies, compared with their formulas."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gymnasium import spaces
from keras import ops

from noterl import backends, heads, networks
from noterl.acting import numpy_forward as acting
from noterl.backends import current
from noterl.explorer import Explorer
from noterl.policies import GumbelSoftmaxPolicy, SoftmaxPolicy

LOGITS = np.array([[0.0, 1.0, -1.0], [2.0, 0.0, 0.5]], np.float32)
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 2.0], np.float32))


def explorer(seed: int = 0) -> Explorer:
    made = Explorer()
    made.generator = np.random.default_rng(seed)
    return made


def fetched(value) -> np.ndarray:
    return current().fetch(value)


def tensor(value) -> object:
    return ops.convert_to_tensor(np.asarray(value))


def at_once(function):
    """Return the function, on JAX compiled as a whole: compiling each of its operations takes longer."""
    if backends.name() != "jax":
        return function
    import jax

    return jax.jit(function)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64))
    return weights / weights.sum(-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.asarray(logits, np.float64)))


class TestCategorical:
    head = heads.Categorical().bind(spaces.Discrete(3))
    several = heads.Categorical().bind(spaces.MultiDiscrete([3, 2]))

    def test_samples_follow_the_softmax(self) -> None:
        samples = self.head.explore(np.repeat(LOGITS, 20_000, axis=0), explorer(), 0).reshape(2, -1)
        for row, probabilities in zip(samples, softmax(LOGITS), strict=True):
            # Four standard deviations of a share.
            np.testing.assert_allclose(np.bincount(row, minlength=3) / len(row), probabilities, atol=0.015)

    def test_batch_samples_the_same_actions_as_its_rows(self) -> None:
        values = np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
        whole, one = explorer(7), explorer(7)
        rows = np.concatenate([self.several.explore(values[row : row + 1], one, 0) for row in range(6)])
        assert self.several.explore(values, whole, 0).tolist() == rows.tolist()

    def test_deterministic_actions_are_the_most_probable(self) -> None:
        assert self.head.deterministic(LOGITS).tolist() == [1, 0]
        best = self.several.deterministic(np.array([[0.0, 1.0, 2.0, 3.0, 1.0], [5, 1, 2, 0, 1]], np.float32))
        assert best.tolist() == [[2, 0], [0, 1]] and best.dtype == np.int64

    def test_log_probabilities_and_entropy_equal_the_formulas(self) -> None:
        expected = np.log(softmax(LOGITS))
        found = at_once(self.head.log_prob)(tensor(LOGITS), tensor(np.array([2, 0], np.int32)))
        np.testing.assert_allclose(fetched(found), expected[[0, 1], [2, 0]], rtol=1e-5)
        entropy = -(np.exp(expected) * expected).sum(-1)
        np.testing.assert_allclose(fetched(at_once(self.head.entropy)(tensor(LOGITS))), entropy, rtol=1e-5)

    def test_log_probabilities_and_entropies_of_several_choices_are_sums(self) -> None:
        values = np.array([[0.0, 1.0, -1.0, 0.5, 0.25]], np.float32)
        first, second = np.log(softmax(values[:, :3])), np.log(softmax(values[:, 3:]))
        found = at_once(self.several.log_prob)(tensor(values), tensor(np.array([[1, 0]], np.int32)))
        np.testing.assert_allclose(fetched(found), first[:, 1] + second[:, 0], rtol=1e-5)
        entropy = -(np.exp(first) * first).sum() - (np.exp(second) * second).sum()
        np.testing.assert_allclose(fetched(at_once(self.several.entropy)(tensor(values))), [entropy], rtol=1e-5)

    def test_policy_on_logits_may_choose_actions(self) -> None:
        policy = GumbelSoftmaxPolicy(eps=0.0)
        assert self.head.explore(np.array([[0.0, 1000.0, 0.0]]), policy, 0).tolist() == [1]
        assert self.head.acts_on == ("logits",) and self.several.acts_on == ()

    def test_unsupported_space_or_outputs_raise(self) -> None:
        with pytest.raises(ValueError, match=r"Categorical .*got Box"):
            heads.Categorical().bind(BOX)
        with pytest.raises(ValueError, match=r"5.*got \(1, 4\)"):
            self.several.check((1, 4))


class TestProbabilities:
    """The head of probabilities equals `Categorical` on the logits that they come from."""

    kinds = pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 1])], ids=str)

    @staticmethod
    def values(space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
        logits = np.array([[0.0, 1.0, -1.0], [2.0, 0.0, 0.5]], np.float32)
        parts = [logits] if isinstance(space, spaces.Discrete) else [logits[:, :2], logits[:, 2:]]
        return logits, np.concatenate([softmax(part) for part in parts], axis=1).astype(np.float32)

    @kinds
    def test_losses_and_actions_equal_those_of_logits(self, space: spaces.Space) -> None:
        logits, probabilities = self.values(space)
        head, other = heads.Probabilities().bind(space), heads.Categorical().bind(space)
        actions = head.explore(probabilities, explorer(3), 0)
        assert actions.tolist() == other.explore(logits, explorer(3), 0).tolist()
        assert head.deterministic(probabilities).tolist() == other.deterministic(logits).tolist()
        for name, arguments in (("log_prob", (tensor(actions),)), ("entropy", ())):
            found = fetched(at_once(getattr(head, name))(tensor(probabilities), *arguments))
            expected = fetched(at_once(getattr(other, name))(tensor(logits), *arguments))
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    def test_probability_of_zero_has_finite_losses(self) -> None:
        head = heads.Probabilities().bind(spaces.Discrete(2))
        values = tensor(np.array([[1.0, 0.0]], np.float32))
        assert np.isfinite(fetched(at_once(head.log_prob)(values, tensor(np.array([1], np.int32))))).all()
        np.testing.assert_allclose(fetched(at_once(head.entropy)(values)), [0.0], atol=1e-5)

    def test_softmax_policy_may_choose_actions(self) -> None:
        head = heads.Probabilities().bind(spaces.Discrete(2))
        assert head.explore(np.array([[0.0, 1.0]], np.float32), SoftmaxPolicy(), 0).tolist() == [1]

    def test_logits_and_probabilities_are_not_confused(self) -> None:
        space = spaces.Discrete(3)
        logits, probabilities = self.values(space)
        with pytest.raises(ValueError, match=r"logits.*Probabilities"):
            heads.Categorical().bind(space).check_values(probabilities)
        with pytest.raises(ValueError, match="probabilities"):
            heads.Probabilities().bind(space).check_values(logits)
        heads.Categorical().bind(space).check_values(logits)
        heads.Probabilities().bind(space).check_values(probabilities)


class TestGaussian:
    head = heads.Gaussian().bind(BOX)
    values = np.array([[0.5, 1.0, 0.0, -1.0], [-3.0, 0.25, 0.5, 0.5]], np.float32)

    def test_samples_follow_the_distribution_also_beyond_the_bounds(self) -> None:
        samples = self.head.explore(np.repeat(self.values, 20_000, axis=0), explorer(), 0).reshape(2, -1, 2)
        deviations = np.exp(self.values[:, 2:])
        np.testing.assert_allclose(samples.mean(axis=1), self.values[:, :2], atol=0.05)
        np.testing.assert_allclose(samples.std(axis=1), deviations, rtol=0.03)
        assert samples.min() < -3 and samples.dtype == np.float32

    def test_executed_actions_are_clipped_to_the_bounds(self) -> None:
        actions = self.head.executed(np.array([[-7.0, 3.0], [0.25, 0.5]], np.float32))
        assert actions.tolist() == [[-1.0, 2.0], [0.25, 0.5]] and actions.dtype == BOX.dtype
        assert self.head.deterministic(self.values).tolist() == [[0.5, 1.0], [-3.0, 0.25]]

    def test_log_probabilities_equal_the_density(self) -> None:
        actions = np.array([[0.0, 5.0], [2.0, 0.25]], np.float32)
        mean, deviation = self.values[:, :2].astype(np.float64), np.exp(self.values[:, 2:].astype(np.float64))
        density = np.exp(-0.5 * ((actions - mean) / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))
        found = fetched(at_once(self.head.log_prob)(tensor(self.values), tensor(actions)))
        np.testing.assert_allclose(found, np.log(density).sum(-1), rtol=1e-5)
        # Actions of a Box of float16.
        found = fetched(self.head.log_prob(tensor(self.values), tensor(actions.astype(np.float16))))
        np.testing.assert_allclose(found, np.log(density).sum(-1), rtol=1e-5)

    def test_entropy_equals_its_formula(self) -> None:
        expected = 0.5 * np.log(2 * np.pi * np.e * np.exp(self.values[:, 2:].astype(np.float64)) ** 2).sum(-1)
        np.testing.assert_allclose(fetched(at_once(self.head.entropy)(tensor(self.values))), expected, rtol=1e-5)

    def test_unsupported_space_or_outputs_raise(self) -> None:
        with pytest.raises(ValueError, match=r"Gaussian .*got Discrete"):
            heads.Gaussian().bind(spaces.Discrete(2))
        with pytest.raises(ValueError, match=r"4.*got \(8, 2\)"):
            self.head.check((8, 2))


class TestBernoulli:
    head = heads.Bernoulli().bind(spaces.MultiBinary(3))
    values = np.array([[0.0, 1.0, -2.0], [30.0, -200.0, 0.5]], np.float32)

    def test_samples_follow_the_sigmoid(self) -> None:
        samples = self.head.explore(np.repeat(self.values, 20_000, axis=0), explorer(), 0).reshape(2, -1, 3)
        # Four standard deviations of a share.
        np.testing.assert_allclose(samples.mean(axis=1), sigmoid(self.values), atol=0.015)
        assert samples.dtype == np.int8 and self.head.action_space.contains(samples[0, 0])

    def test_batch_samples_the_same_actions_as_its_rows(self) -> None:
        values = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
        whole, one = explorer(7), explorer(7)
        rows = np.concatenate([self.head.explore(values[row : row + 1], one, 0) for row in range(6)])
        assert self.head.explore(values, whole, 0).tolist() == rows.tolist()

    def test_deterministic_actions_are_the_most_probable(self) -> None:
        assert self.head.deterministic(self.values).tolist() == [[0, 1, 0], [1, 0, 1]]

    def test_actions_have_the_shape_of_the_space(self) -> None:
        head = heads.Bernoulli().bind(spaces.MultiBinary([2, 2]))
        assert head.size == 4
        values = np.array([[1.0, -1.0, 1.0, -1.0]], np.float32)
        assert head.deterministic(values).tolist() == [[[1, 0], [1, 0]]]
        found = at_once(head.log_prob)(tensor(values), tensor(head.deterministic(values)))
        np.testing.assert_allclose(fetched(found), 4 * np.log(sigmoid(1.0)), rtol=1e-5)
        samples = head.random(1_000, np.random.default_rng(0))
        assert samples.shape == (1_000, 2, 2) and samples.dtype == np.int8
        np.testing.assert_allclose(samples.mean(axis=0), 0.5, atol=0.07)

    def test_log_probabilities_and_entropy_equal_the_formulas(self) -> None:
        values, actions = self.values[:1], np.array([[1, 0, 1]], np.int8)
        ones = sigmoid(values)
        expected = np.log(np.where(actions == 1, ones, 1 - ones)).sum(-1)
        np.testing.assert_allclose(
            fetched(at_once(self.head.log_prob)(tensor(values), tensor(actions))), expected, rtol=1e-5
        )
        entropy = -(ones * np.log(ones) + (1 - ones) * np.log(1 - ones)).sum(-1)
        np.testing.assert_allclose(fetched(at_once(self.head.entropy)(tensor(values))), entropy, rtol=1e-5)

    def test_large_logits_have_finite_losses(self) -> None:
        values, actions = self.values[1:], np.array([[0, 1, 1]], np.int8)
        expected = -30.0 - 200.0 - np.log1p(np.exp(-0.5))
        found = fetched(at_once(self.head.log_prob)(tensor(values), tensor(actions)))
        np.testing.assert_allclose(found, [expected], rtol=1e-5)
        entropy = fetched(at_once(self.head.entropy)(tensor(np.array([[200.0, -200.0, 0.0]], np.float32))))
        np.testing.assert_allclose(entropy, [np.log(2)], rtol=1e-5)

    def test_unsupported_space_or_outputs_raise(self) -> None:
        with pytest.raises(ValueError, match=r"MultiBinary .*got Discrete"):
            heads.Bernoulli().bind(spaces.Discrete(2))
        with pytest.raises(ValueError, match=r"3.*got \(8, 2\)"):
            self.head.check((8, 2))


class TestDivergences:
    """KL divergences equal the expectation of the difference of log-probabilities under the old distribution."""

    @pytest.mark.parametrize(
        "head",
        [
            heads.Categorical().bind(spaces.Discrete(4)),
            heads.Categorical().bind(spaces.MultiDiscrete([2, 2])),
            heads.Bernoulli().bind(spaces.MultiBinary(4)),
        ],
        ids=["discrete", "multi", "binary"],
    )
    def test_divergence_equals_the_sum_over_all_actions(self, head: heads.Head) -> None:
        old, new = np.random.default_rng(2).normal(size=(2, 3, 4)).astype(np.float32)
        expected, log_prob = np.zeros(3), at_once(head.log_prob)
        for action in every_action(head.action_space):
            actions = tensor(np.repeat(np.array(action, np.int32)[None], 3, axis=0))
            before, after = (fetched(log_prob(tensor(each), actions)).astype(np.float64) for each in (old, new))
            expected += np.exp(before) * (before - after)
        np.testing.assert_allclose(fetched(at_once(head.kl_divergence)(tensor(old), tensor(new))), expected, rtol=1e-4)
        np.testing.assert_allclose(fetched(at_once(head.kl_divergence)(tensor(old), tensor(old))), 0.0, atol=1e-6)

    def test_divergence_of_probabilities_equals_that_of_their_logits(self) -> None:
        old, new = np.random.default_rng(2).normal(size=(2, 3, 4)).astype(np.float32)
        head, space = heads.Probabilities().bind(spaces.Discrete(4)), spaces.Discrete(4)
        probabilities = [tensor(softmax(each).astype(np.float32)) for each in (old, new)]
        expected = heads.Categorical().bind(space).kl_divergence(tensor(old), tensor(new))
        np.testing.assert_allclose(fetched(at_once(head.kl_divergence)(*probabilities)), fetched(expected), rtol=1e-4)

    def test_divergence_of_gaussians_equals_the_integral(self) -> None:
        head = heads.Gaussian().bind(spaces.Box(-1.0, 1.0, (1,)))
        old, new = np.array([[0.25, -0.5]], np.float32), np.array([[-0.5, 0.25]], np.float32)
        points = np.linspace(-8, 8, 4_001)
        densities = [
            np.exp(-0.5 * ((points - mean) / np.exp(log_std)) ** 2) / (np.exp(log_std) * np.sqrt(2 * np.pi))
            for ((mean, log_std),) in (old.astype(np.float64), new.astype(np.float64))
        ]
        integral = (densities[0] * np.log(densities[0] / densities[1])).sum() * (points[1] - points[0])
        np.testing.assert_allclose(
            fetched(at_once(head.kl_divergence)(tensor(old), tensor(new))), [integral], rtol=1e-4
        )
        both = [np.concatenate([each[:, :1], each[:, :1], each[:, 1:], each[:, 1:]], axis=1) for each in (old, new)]
        found = heads.Gaussian().bind(BOX).kl_divergence(*map(tensor, both))
        np.testing.assert_allclose(fetched(found), [2 * integral], rtol=1e-4)


def every_action(space: spaces.Space) -> list:
    if isinstance(space, spaces.Discrete):
        return list(range(space.n))
    counts = space.nvec if isinstance(space, spaces.MultiDiscrete) else [2] * space.n
    return list(itertools.product(*map(range, counts)))


class TestNetworks:
    """Options of networks for these heads; `tests/networks/test_builders.py` tests the others."""

    actor = networks.mlp(5, [16, 4], 2, activation="tanh", gain=0.5, log_std=-0.25)

    def test_kernels_are_orthogonal(self) -> None:
        weights = networks.get_weights(self.actor)
        first, second, last = weights[0], weights[2], weights[4]
        np.testing.assert_allclose(first @ first.T, 2 * np.eye(5), atol=1e-5)
        np.testing.assert_allclose(second.T @ second, 2 * np.eye(4), atol=1e-5)
        np.testing.assert_allclose(last.T @ last, 0.25 * np.eye(2), atol=1e-5)
        assert [weight.any() for weight in weights[1:6:2]] == [False] * 3

    def test_log_std_is_appended_to_the_means(self) -> None:
        outputs = fetched(self.actor(tensor(np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32))))
        assert outputs.shape == (3, 4) and (outputs[:, 2:] == -0.25).all()
        assert len(set(outputs[:, 0].tolist())) == 3
        assert len(networks.trainable_variables(self.actor)) == 7

    def test_numpy_copy_appends_log_std(self) -> None:
        program, variables = acting.describe([self.actor], (5,), np.float32)
        observations = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
        weights = [fetched(variable) for variable in variables]
        np.testing.assert_allclose(program(observations, weights), fetched(self.actor(tensor(observations))), atol=1e-6)

    def test_share_trunk_shares_all_but_the_last_layer(self) -> None:
        critic = networks.share_trunk(self.actor, 1, gain=1.0)
        shared, own = networks.variables(critic)[:4], networks.variables(critic)[4:]
        assert all(ours is theirs for ours, theirs in zip(shared, networks.variables(self.actor)[:4], strict=True))
        assert sorted(np.prod(variable.shape) for variable in own) == [1, 4]
        assert fetched(critic(tensor(np.zeros((3, 5), np.float32)))).shape == (3, 1)

    def test_share_trunk_needs_a_stack_of_layers(self) -> None:
        with pytest.raises(ValueError, match="network"):
            networks.share_trunk(networks.dueling_mlp(4, [8], 2), 1)
