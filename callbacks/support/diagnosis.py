"""Rules that find what is wrong with a run, from series of measured values by name.

The parameters of a rule are the names of series, and the rule is skipped if one of these is missing or short. `Doctor`
measures all of them; a log has some. The docstring of a rule is the text of its finding: a sentence, and the advice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

Verdict = dict[str, float] | None  # the evidence; None if nothing is wrong
Series = np.ndarray[Any, Any]

LEAST_VALUES = 4  # of a series


class Finding(NamedTuple):
    """What is wrong with a run.

    Attributes:
        name: the name of the rule.
        message: one sentence.
        evidence: the figures, by name.
        advice: what to try.
    """

    name: str
    message: str
    evidence: dict[str, float]
    advice: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message} {self.advice}"


def diagnose(measures: Mapping[str, Sequence[float]]) -> list[Finding]:
    """Return what is wrong, the most likely cause first."""
    findings = []
    for rule in RULES:
        series = [np.array(measures.get(name, ()), np.float64) for name in _series_names(rule)]
        with np.errstate(invalid="ignore"):  # values that are not finite fulfil no condition
            evidence = rule(*series) if min(map(len, series)) >= LEAST_VALUES else None
        if evidence is not None:
            message, _, advice = " ".join(str(rule.__doc__).split()).partition(" Advice: ")
            findings.append(Finding(rule.__name__, message.format(**evidence), evidence, advice))
    return findings


@cache  # because reading a signature takes longer than most rules
def _series_names(rule: Callable[..., Verdict]) -> tuple[str, ...]:
    return tuple(inspect.signature(rule).parameters)


def when(is_wrong: Any, **evidence: Any) -> Verdict:
    """Return the evidence as numbers if something is wrong, otherwise None."""
    return {name: float(value) for name, value in evidence.items()} if is_wrong else None


def late(series: Series) -> float:
    """Return the mean of the finite values in the second half; NaN if there are none."""
    half = series[len(series) // 2 :]
    values = half[np.isfinite(half)]
    return float(values.mean()) if len(values) else np.nan


# The data


def truncation_as_termination(length: Series, terminated: Series, truncated: Series) -> Verdict:
    """Each of the last episodes was terminated after exactly {length:.0f} steps, which looks like a limit of time.

    Advice: Return truncated=True at the limit, so that the value of the last observation counts.
    """
    fixed = len(length) >= 8 and np.ptp(length[-8:]) == 0 and length[-1] > 1
    return when(fixed and terminated.sum() > 2 and not truncated.any(), length=length[-1])


def termination_as_truncation(length: Series, terminated: Series, truncated: Series) -> Verdict:
    """{share:.0%} of the ends were truncations, but after {shortest:.0f} to {longest:.0f} steps.

    Advice: Return terminated=True where the task itself ends the episode; a limit of time has one length.
    """
    share = truncated.sum() / max(1.0, truncated.sum() + terminated.sum())
    varied = len(length) >= 20 and length.std() > 0.2 * length.mean()
    return when(varied and share > 0.9, share=share, shortest=length.min(), longest=length.max())


def observations_without_information(constant_share: Series) -> Verdict:
    """{share:.0%} of the numbers in observations have never changed.

    Advice: Look at what reset and step return, and leave out what is constant or padding.
    """
    return when(constant_share[-1] >= 0.5, share=constant_share[-1])


def observations_unscaled(observation_scale: Series) -> Verdict:
    """A number in observations is about {scale:.3g}, but networks learn from numbers of about 1.

    Advice: Scale the observations, or pass normalize_observation=True.
    """
    return when(np.median(observation_scale) > 100, scale=np.median(observation_scale))


def reward_scale(reward_size: Series, reward_largest: Series) -> Verdict:
    """A reward is about {size:.3g}, and the largest one was {largest:.3g}.

    Advice: Scale rewards to about 1, or pass normalize_reward=True; if all are 0, check what the environment rewards.
    """
    largest = reward_largest.max()
    return when(largest < 0.01 or late(reward_size) > 100, size=late(reward_size), largest=largest)


def actions_clipped(large_actions_differ: Series) -> Verdict:
    """Half of the largest action had exactly the effect of the largest one in 5 steps ({differ:.0f} differences).

    Advice: Set the bounds of the action space to those that the environment clips actions to.
    """
    return when(large_actions_differ[-1] == 0, differ=large_actions_differ[-1])


# Settings


def gamma_low(gamma: Series, length: Series) -> Verdict:
    """With gamma {gamma:.3g}, rewards count for {horizon:.1f} steps, but an episode has {length:.0f}.

    Advice: Use 0.99, or 1 - 1 / n for the number n of steps that matter.
    """
    horizon = 1 / (1 - min(gamma[-1], 0.999))
    return when(horizon < min(4, length.mean() / 3), gamma=gamma[-1], horizon=horizon, length=length.mean())


def memory_small(capacity: Series, batch_size: Series, length: Series) -> Verdict:
    """The memory holds {capacity:.0f} transitions, but an episode has {length:.0f} and a batch {batch:.0f}.

    Advice: Pass replay=noterl.Replay(100_000), or at least ten episodes.
    """
    small = capacity[-1] < max(length.mean(), 4 * batch_size[-1])
    return when(small, capacity=capacity[-1], length=length.mean(), batch=batch_size[-1])


def epsilon_high(epsilon: Series, progress: Series) -> Verdict:
    """Epsilon is still {epsilon:.2f} after {progress:.0%} of the steps, so most actions are random.

    Advice: Let the schedule of epsilon end within the first half of the run.
    """
    return when(progress[-1] > 0.5 and epsilon[-1] > 0.9, epsilon=epsilon[-1], progress=progress[-1])


def epsilon_low(epsilon: Series, progress: Series, updates_before: Series) -> Verdict:
    """Epsilon was {epsilon:.3f} after {progress:.0%} of the steps, before values were learned.

    Advice: Let epsilon fall during the first tenth to half of the run.
    """
    is_early = progress[0] < 0.25 and not updates_before[0]
    return when(is_early and epsilon[0] < 0.02, epsilon=epsilon[0], progress=progress[0])


def temperature_high(temperature: Series, reward_size: Series) -> Verdict:
    """The temperature {temperature:.3g} outweighs rewards of about {reward:.3g}.

    Advice: Pass temperature="auto", or a number well below the rewards; for small rewards, a small initial_temperature.
    """
    return when(late(temperature) > late(reward_size), temperature=late(temperature), reward=late(reward_size))


def entropy_coefficient_high(entropy_coefficient: Series, entropy: Series) -> Verdict:
    """With an entropy coefficient of {coefficient:.3g}, the entropy stays at {share:.0%} of the largest one.

    Advice: Use a coefficient of 0 to 0.01.
    """
    share = late(entropy) / np.fmax.reduce(entropy)  # the first episodes have no metrics
    return when(entropy_coefficient[-1] >= 0.1 and share > 0.95, coefficient=entropy_coefficient[-1], share=share)


def gradients_clipped(gradient_limit: Series) -> Verdict:
    """Gradients are clipped to {limit:.1g}, which is less than almost every gradient.

    Advice: Clip the norm to 0.5 to 10.
    """
    return when(gradient_limit[-1] < 0.01, limit=gradient_limit[-1])


# Networks


def learning_rate_high(most_movement: Series, updates_so_far: Series) -> Verdict:
    """Within {updates:.0f} updates, weights moved by {moved:.1f} times their norm.

    Advice: Divide the learning rate by 10 to 100.
    """
    far = np.append(np.flatnonzero((most_movement > 2) & (updates_so_far < 300)), -1)[0]
    return when(far >= 0, updates=updates_so_far[far], moved=most_movement[far])


def dead_units(dead_share: Series) -> Verdict:
    """{share:.0%} of the units in a hidden layer are 0 for all observations.

    Advice: Use the default initialization and a lower learning rate.
    """
    return when(dead_share[-1] > 0.9, share=dead_share[-1])


def saturated_units(saturated_share: Series) -> Verdict:
    """From the start, {share:.0%} of the outputs of a tanh layer were at -1 or 1, where gradients vanish.

    Advice: Use the default initialization, and scale observations to about 1.
    """
    return when(saturated_share.min() > 0.6, share=saturated_share.min())


def frozen_network(least_movement: Series, most_movement: Series, updates_so_far: Series) -> Verdict:
    """A network has not changed in {updates:.0f} updates, but another moved by {moved:.0%} of its norm.

    Advice: Check that the losses depend on each of agent.networks(), with weights above 0.
    """
    return when(least_movement[-1] < 1e-7 < most_movement[-1], updates=updates_so_far[-1], moved=most_movement[-1])


def target_never_updated(target_movement: Series, progress: Series) -> Verdict:
    """A target network has not changed in {progress:.0%} of the run.

    Advice: Pass a target_update that is much smaller than the budget, such as 0.005 or 1_000.
    """
    return when(target_movement[-1] < 1e-7 and progress[-1] > 0.5, progress=progress[-1])


def learning_rate_low(most_movement: Series, updates_so_far: Series) -> Verdict:
    """In {updates:.0f} updates, no network has moved by more than {moved:.2%} of its norm.

    Advice: Multiply the learning rate by 10 to 100.
    """
    slow = most_movement[-1] < 0.02 and updates_so_far[-1] >= 200
    return when(slow, updates=updates_so_far[-1], moved=most_movement[-1])


# What is learned


def policy_against_advantages(policy_direction: Series) -> Verdict:
    """Updates make actions with an advantage less likely (correlation {correlation:.2f}).

    Advice: Check the signs of the advantage and of the policy's loss, which is minimized.
    """
    values = policy_direction[np.isfinite(policy_direction)]
    is_clear = len(values) >= 6 and (values < 0).mean() > 0.9  # correlations are small, but their sign is not
    return when(is_clear, correlation=late(policy_direction))


def values_against_returns(value_mean: Series, reward_mean: Series, reward_size: Series) -> Verdict:
    """Values are about {value:.3g}, but all rewards have the other sign, and a mean of {reward:.3g}.

    Advice: Check the sign of the target of the values, and how next values are added to rewards.
    """
    one_sign = np.allclose(np.abs(reward_mean), reward_size) and np.ptp(np.sign(reward_mean)) == 0
    wrong = late(value_mean) * late(reward_mean) < 0 and abs(late(value_mean)) > 0.2 * late(reward_size)
    return when(one_sign and wrong, value=late(value_mean), reward=late(reward_mean))


def values_diverge(value_largest: Series, reward_largest: Series, gamma: Series) -> Verdict:
    """Values reach {value:.3g}, but rewards allow no more than {bound:.3g}.

    Advice: Use a target network that moves slowly, a lower learning rate, or two critics.
    """
    bound = reward_largest.max() / (1 - min(gamma[-1], 0.9999))
    return when(value_largest[-1] > 2 * bound, value=value_largest[-1], bound=bound)


def entropy_collapsed(entropy: Series, updates: Series, reward: Series) -> Verdict:
    """The entropy fell to {entropy:.2g} at update {update:.0f}, and the return is no better than half of the best.

    Advice: Raise the entropy coefficient, lower the learning rate, or normalize advantages.
    """
    largest = np.fmax.reduce(entropy)
    # The entropy of a Box is negative where the density is above 1, so only a fall by 5 is a collapse.
    is_low = entropy < (0.05 * largest if np.fmin.reduce(entropy) >= 0 else largest - 5)
    best = np.convolve(reward, np.ones(4) / 4, "valid").max()
    lost = reward[-10:].mean() - reward.min() < 0.5 * (best - reward.min())
    return when(is_low[-1] and lost, entropy=entropy[-1], update=updates[is_low.argmax()])


def policy_changes_too_much(approximate_kl: Series, clip_fraction: Series) -> Verdict:
    """An update changes the policy by a KL divergence of {divergence:.2g}, and {clipped:.0%} of the ratios are clipped.

    Advice: Lower the learning rate or the number of epochs, or pass target_kl=0.02.
    """
    high = late(approximate_kl) > 0.2 or late(clip_fraction) > 0.6
    return when(high, divergence=late(approximate_kl), clipped=late(clip_fraction))


def value_loss_large(value_loss: Series, reward: Series) -> Verdict:
    """The value loss is {loss:.3g}, {ratio:.0f} times what returns of {mean:.3g} +- {deviation:.3g} explain.

    Advice: Lower the learning rate, or pass normalize_reward=True.
    """
    # Untrained values have a loss of the size of squared returns, and the returns of a solved task hardly vary.
    ratio = late(value_loss) / max(reward.var(), 0.1 * np.square(reward).mean(), 1e-8)
    return when(ratio > 10, loss=late(value_loss), ratio=ratio, mean=reward.mean(), deviation=reward.std())


def values_explain_nothing(explained_variance: Series, progress: Series) -> Verdict:
    """The explained variance of the values is {explained:.2g}, so a constant would predict returns better.

    Advice: Raise the learning rate or the size of the critic, and check its targets.
    """
    return when(late(explained_variance) < -0.5 and progress[-1] > 0.5, explained=late(explained_variance))


def actions_at_bounds(actions_at_bounds: Series) -> Verdict:
    """{share:.0%} of the actions are at their bounds.

    Advice: Check the scale of actions, reduce the exploration noise, or lower the learning rate of the actor.
    """
    return when(late(actions_at_bounds) > 0.95, share=late(actions_at_bounds))


def evaluation_falls(evaluation_reward_mean: Series, reward: Series) -> Verdict:
    """Evaluations fell from {best:.3g} to {last:.3g}, while the return in training rose by {rise:.3g}.

    Advice: Keep the best agent with Evaluate(on_best=...), and compare the environments of training and evaluation.
    """
    values = evaluation_reward_mean[np.isfinite(evaluation_reward_mean)]
    rise = late(reward) - reward[: len(reward) // 2].mean()
    falls = len(values) >= 6 and values[-3:].max() < values.max() - 0.5 * np.ptp(values)
    return when(falls and rise > 0, best=values.max(), last=values[-1], rise=rise) if len(values) else None


def no_better_than_random(
    reward: Series, steps: Series, starts: Series, reference: Series, progress: Series
) -> Verdict:
    """The return is {reward:.3g}; random actions, or the best constant one, have {best:.3g}.

    Advice: Train longer, or look for a fault in rewards, observations or the loss; try the preset of a known task.
    """
    recent = reward[-max(5, len(reward) // 5) :].mean()
    random_returns = reward[steps <= starts[-1]]  # the agent's actions were random then
    best = np.fmax(random_returns.mean() if len(random_returns) else np.nan, reference[-1])
    return when(len(reward) >= 20 and recent <= best and progress[-1] > 0.7, reward=recent, best=best)


# A direct cause comes before its symptoms.
RULES: tuple[Callable[..., Verdict], ...] = (
    *(truncation_as_termination, termination_as_truncation, observations_without_information, observations_unscaled),
    *(reward_scale, actions_clipped, gamma_low, memory_small, epsilon_high, epsilon_low, temperature_high),
    *(entropy_coefficient_high, gradients_clipped, learning_rate_high, dead_units, saturated_units, frozen_network),
    *(target_never_updated, learning_rate_low, policy_against_advantages, values_against_returns, values_diverge),
    *(entropy_collapsed, policy_changes_too_much, value_loss_large, values_explain_nothing, actions_at_bounds),
    *(evaluation_falls, no_better_than_random),
)
