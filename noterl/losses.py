"""Functions for computing losses, on `keras.ops`, for use inside and outside of compiled updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noterl.backends import ops
from noterl.backends.replicas import mean_over_replicas, num_replicas

Tensor = Any


def take(values: Tensor, action: Tensor) -> Tensor:
    """Return the values of the actions taken.

    Args:
        values: `[B, A]`.
        action: `[B]`, ints.

    Returns:
        `[B]`.

    Example:
    >>> import numpy as np
    >>> from noterl import losses
    >>> [float(value) for value in losses.take(np.array([[1.0, 2.0], [3.0, 4.0]], "float32"), np.array([1, 0]))]
    [2.0, 3.0]
    """
    # The gradient of a gather is a scatter, which costs more than select and sum on every backend.
    index = ops.expand_dims(ops.cast(action, "int32"), axis=-1)
    taken = ops.equal(index, ops.arange(values.shape[-1], dtype="int32"))  # [B, A]
    return ops.sum(ops.where(taken, values, ops.zeros_like(values)), axis=-1)


def large_margin(values: Tensor, action: Tensor, margin: float = 0.8) -> Tensor:
    """Return the large-margin loss of an expert's actions (Piot et al., 2014; Hester et al., 2018, section 4).

    `max over a of (Q(a) + margin if a is not the expert's) - Q(expert's action)`. The loss is 0 if the expert's action
    leads all others by the margin.

    Args:
        values: `[B, A]`.
        action: of the expert, `[B]`, ints.
        margin: above 0.

    Returns:
        `[B]`.

    Example:
    >>> import numpy as np
    >>> from noterl import losses
    >>> values = np.array([[1.0, 2.0], [1.0, 2.0]], "float32")
    >>> [round(float(loss), 2) for loss in losses.large_margin(values, np.array([0, 1]))]
    [1.8, 0.0]
    """
    index = ops.expand_dims(ops.cast(action, "int32"), axis=-1)
    taken = ops.equal(index, ops.arange(values.shape[-1], dtype="int32"))  # [B, A]
    rivals = ops.where(taken, values, values + margin)
    return ops.max(rivals, axis=-1) - take(values, action)


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """Return `reward + discount * next_value` without a gradient; all `[B]`.

    `discount` is gamma^n * (1 - terminated), as in batches.
    """
    return ops.stop_gradient(reward + discount * next_value)


def n_step_target(reward: Tensor, discount: Tensor, next_value: Tensor, continues: Tensor, n: int) -> Tensor:
    """Return n-step targets within sequences, without a gradient.

    `r_t + d_t r_{t+1} + ... + d_t ... d_{t+m-1} V(s_{t+m})` with m = n, or fewer steps if the episode or the sequence
    ends: Sutton, "Learning to predict by the methods of temporal differences", 1988.

    Args:
        reward: `[T, S]`.
        discount: `[T, S]`, gamma * (1 - terminated).
        next_value: `[T, S]`, of the true next observations. At a truncation, the target is bootstrapped from it.
        continues: `[T, S]`, 1 if the next row of the sequence belongs to the same episode, else 0.
        n: the largest number of rewards.

    Returns:
        `[T, S]`.

    Example:
    >>> from keras import ops
    >>> from noterl import losses
    >>> ones, continues = ops.ones((3, 1)), ops.array([[1.0], [1.0], [0.0]])
    >>> target = losses.n_step_target(ones, 0.5 * ones, 4 * ones, continues, n=2)
    >>> [float(value) for value in target[:, 0]]
    [2.5, 2.5, 3.0]
    """
    target = one_step = reward + discount * next_value
    for _ in range(n - 1):
        following = ops.concatenate([target[1:], one_step[-1:]])
        target = ops.where(continues > 0, reward + discount * following, one_step)
    return ops.stop_gradient(target)


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """Return the Huber loss of each error (Huber, 1964): quadratic up to `delta`, then linear.

    `0.5 e^2` if `|e| <= delta`, else `delta (|e| - 0.5 delta)`. Value and gradient are exact; second derivatives are
    not.
    """
    # With a constant c = clip(e), c e - c^2 / 2 has Huber's value, and its gradient c.
    clipped = ops.stop_gradient(ops.clip(error, -delta, delta))
    return clipped * (error - 0.5 * clipped)


def squared(error: Tensor) -> Tensor:
    """Return `0.5 e^2` of each error, which equals `huber` near zero."""
    return 0.5 * ops.square(error)


def quantile_huber(quantiles: Tensor, target: Tensor, fractions: Tensor) -> Tensor:
    """Return the quantile Huber loss of each row, summed over the quantiles and averaged over the target's quantiles.

    Dabney et al., "Distributional reinforcement learning with quantile regression" (2018), equation 10:
    `|tau - 1{u < 0}| huber(u)` for each error `u = target_j - quantile_i`.

    Args:
        quantiles: `[B, Z]`.
        target: `[B, Y]`; no gradient flows to a target from `td_target`.
        fractions: tau of the quantiles, `[Z]` or `[B, Z]`.

    Returns:
        `[B]`.

    Example:
    >>> from keras import ops
    >>> from noterl import losses
    >>> quantiles, target = ops.zeros((1, 2)), ops.array([[0.0, 1.0]])
    >>> [float(loss) for loss in losses.quantile_huber(quantiles, target, ops.array([0.25, 0.75]))]
    [0.25]
    """
    error = ops.expand_dims(target, 1) - ops.expand_dims(quantiles, 2)  # [B, Z, Y]
    weight = ops.abs(ops.expand_dims(fractions, -1) - ops.cast(error < 0, "float32"))
    return ops.sum(ops.mean(weight * huber(error), axis=2), axis=1)


def categorical_target(probabilities: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Return the projection of `reward + discount * Z` onto a support, without a gradient.

    Bellemare et al., "A distributional perspective on reinforcement learning" (2017), equation 7: a value between two
    atoms gives each atom a share of the probability, by the distance to the other atom. Values beyond the support are
    clipped.

    Args:
        probabilities: of Z, `[B, Z]`.
        reward: `[B]`.
        discount: `[B]`, gamma^n * (1 - terminated).
        support: the values of the atoms, `[Z]`, in equal steps.

    Returns:
        `[B, Z]`.

    Example:
    >>> from keras import ops
    >>> from noterl import losses
    >>> probabilities, reward, discount = ops.array([[0.0, 1.0, 0.0]]), ops.array([0.25]), ops.ones(1)
    >>> target = losses.categorical_target(probabilities, reward, discount, ops.array([-1.0, 0.0, 1.0]))
    >>> [float(value) for value in target[0]]
    [0.0, 0.75, 0.25]
    """
    values = ops.expand_dims(reward, 1) + ops.expand_dims(discount, 1) * support  # [B, Z]
    values = ops.clip(values, support[0], support[-1])
    distance = ops.abs(ops.expand_dims(values, 1) - ops.expand_dims(support, 1)) / (support[1] - support[0])
    shares = ops.maximum(1.0 - distance, 0.0)  # [B, Z of the target, Z]
    return ops.stop_gradient(ops.sum(shares * ops.expand_dims(probabilities, 1), axis=2))


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the mean of `weight * values` over the batch, for importance sampling."""
    return ops.mean(weight * values)


def rows_of(array: Tensor) -> Tensor:
    """Return an array `[T, N, ...]` as rows `[T N, ...]`."""
    return ops.reshape(array, (-1, *array.shape[2:]))


def map_rows(function: Callable[..., Tensor], *arrays: Tensor) -> Tensor:
    """Call a function of rows, such as a network, on arrays `[T, N, ...]`.

    Returns:
        `[T, N, ...]`, or a tuple of such arrays if the function returns a tuple.
    """
    steps, lanes = arrays[0].shape[:2]

    def divided(rows: Tensor) -> Tensor:
        return ops.reshape(rows, (steps, lanes, *rows.shape[1:]))

    rows = function(*map(rows_of, arrays))
    return tuple(map(divided, rows)) if isinstance(rows, tuple) else divided(rows)


def sequence_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return `sum(weight * values)`, divided by the number of rows of weight above 0; all `[T, S]`.

    If replicas share the batch, the divisor is the mean of the replicas' numbers.
    """
    rows = ops.sum(ops.cast(weight > 0, "float32"))
    return ops.sum(weight * values) / ops.maximum(mean_over_replicas(rows), 1.0)


def masked_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return `sum(weight * values) / sum(weight)`: the mean over rows of weight 1.

    If replicas share the batch, the divisor is the mean of the replicas' sums, so that the mean of the results over
    replicas equals the result for the global batch.
    """
    return ops.sum(weight * values) / ops.maximum(mean_over_replicas(ops.sum(weight)), 1e-8)


def normalize(values: Tensor, weight: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Return values `[B]` shifted and scaled to a mean of 0 and a standard deviation of 1, over rows of weight 1.

    A single row is returned unchanged, as in Stable-Baselines3. If replicas share the batch, mean and deviation
    belong to the global batch, and no gradient flows through mean and deviation.
    """
    if values.shape[0] * num_replicas() == 1:
        return values
    centered = values - mean_over_replicas(masked_mean(values, weight))
    variance = mean_over_replicas(masked_mean(ops.square(centered), weight))
    return centered / (ops.sqrt(variance) + epsilon)


def gae(reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, decay: Tensor) -> Tensor:
    """Return the generalized advantages of a rollout.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016, equation 16:
    `A_t = delta_t + decay_t A_{t+1}` with `delta_t = reward_t + discount_t V(s_{t+1}) - V(s_t)`. With lambda = 1, the
    advantage plus the value is the n-step return of the rest of the rollout.

    Args:
        reward: `[T, N]`.
        discount: `[T, N]`, gamma * (1 - terminated).
        value: `[T, N]`, of the observations.
        next_value: `[T, N]`, of the true next observations. At a truncation, the return is bootstrapped from it.
        decay: `[T, N]`, gamma * lambda if the lane's next row follows from this one, else 0.

    Returns:
        `[T, N]`, without a gradient.
    """
    delta = reward + discount * next_value - value

    # Sum over 1, 2, 4, ... steps: log(T) vector operations instead of a loop of T.
    advantage = delta
    span = 1
    length = reward.shape[0]
    while span < length:
        none = ops.zeros_like(delta[:span])
        advantage = advantage + decay * ops.concatenate([advantage[span:], none])
        decay = decay * ops.concatenate([decay[span:], none])
        span *= 2
    return ops.stop_gradient(advantage)


def retrace(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, ratio: Tensor, continues: Tensor
) -> Tensor:
    """Return the Retrace targets of action values.

    Munos et al., "Safe and efficient off-policy reinforcement learning", 2016, as in Wang et al., "Sample efficient
    actor-critic with experience replay", 2017, equation 5: `Q_t = reward_t + discount_t V(s_{t+1}) + discount_t
    min(1, ratio_{t+1}) (Q_{t+1} - Q(s_{t+1}, a_{t+1}))`.

    Args:
        reward: `[T, N]`.
        discount: `[T, N]`, gamma * (1 - terminated).
        value: `[T, N]`, Q(s, a) of the actions taken.
        next_value: `[T, N]`, V of the true next observations. At a truncation, the target is bootstrapped from it.
        ratio: `[T, N]`, the probability of the action over its probability when it was taken.
        continues: `[T, N]`, 1 if the lane's next row follows from this one, else 0.

    Returns:
        `[T, N]`, without a gradient.
    """
    truncated = ops.minimum(ratio, 1.0)
    following = ops.concatenate([truncated[1:], ops.zeros_like(truncated[:1])])
    # The difference of target and value follows the recursion of `gae`, with another decay at each step.
    return ops.stop_gradient(value) + gae(reward, discount, value, next_value, discount * continues * following)


def v_trace(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, ratio: Tensor, continues: Tensor
) -> Tensor:
    """Return the V-trace targets of state values, which correct for the policy that acted.

    Espeholt et al., "IMPALA: Scalable distributed deep-RL with importance weighted actor-learner architectures", 2018,
    equation 1, with both weights clipped at 1: `v_t = V_t + min(1, ratio_t) (reward_t + discount_t next_t - V_t)`. The
    next target `next_t` is `v_{t+1}`, and `next_value_t` where `continues` is 0. The targets minus the values are the
    advantages of the policy gradient. With ratios of 1, they are those of `gae` with lambda = 1.

    Args:
        reward: `[T, N]`.
        discount: `[T, N]`, gamma * (1 - terminated).
        value: `[T, N]`, V of the observations.
        next_value: `[T, N]`, V of the true next observations. At a truncation, the target is bootstrapped from it.
        ratio: `[T, N]`, the probability of the action over its probability when it was taken.
        continues: `[T, N]`, 1 if the lane's next row follows from this one, else 0. If you multiply it by lambda,
            `next_t` is the weighted mean of `v_{t+1}` and `next_value_t`, as in remark 2 of the paper.

    Returns:
        `[T, N]`, without a gradient.

    Example:
    >>> from keras import ops
    >>> from noterl import losses
    >>> ones, continues = ops.ones((2, 1)), ops.array([[1.0], [0.0]])
    >>> target = losses.v_trace(ones, 0.5 * ones, 0 * ones, 4 * ones, ops.array([[2.0], [0.5]]), continues)
    >>> [float(value) for value in target[:, 0]]
    [1.75, 1.5]
    """
    weight = ops.minimum(ratio, 1.0)
    discount = weight * discount
    # `gae` computes `A_t = delta_t + decay_t A_{t+1}`. With these arguments, `A_t` is the target, not the advantage.
    # `delta_t` contains the value of the next observation only where the lane does not continue.
    bootstrap = discount * (1.0 - continues)
    return gae(weight * reward, bootstrap, (weight - 1.0) * value, next_value, discount * continues)


def truncated_importance(
    policy: Tensor,
    behavior: Tensor,
    taken: Tensor,
    advantage: Tensor,
    advantages: Tensor,
    bound: Tensor,
    epsilon: float,
) -> Tensor:
    """Return the coefficient of each `log pi_i` in the policy's objective, with truncated importance weights.

    Wang et al. (2017), equation 9: `min(c, r_a) A` for the action a that was taken, plus the correction of the bias
    `[1 - c / r_i]_+ pi_i A_i` for each action i, where `r_i = pi_i / mu_i`.

    Args:
        policy: pi, `[..., A]`.
        behavior: mu, the probabilities when the action was taken, `[..., A]`.
        taken: the action taken, one-hot `[..., A]`.
        advantage: A, the Retrace target minus V, `[...]`.
        advantages: Q minus V for each action, `[..., A]`.
        bound: c.
        epsilon: is added to mu, and is the least r that divides.

    Returns:
        `[..., A]`.
    """
    ratio = policy / (behavior + epsilon)
    correction = ops.relu(ratio - bound) / ops.maximum(ratio, epsilon) * policy * advantages
    return taken * ops.minimum(ratio, bound) * ops.expand_dims(advantage, -1) + correction


def importance_weight(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Return `exp(log_prob - old_log_prob)`, between e^-30 and e^30: finite if its inverse or a power is computed."""
    return ops.exp(ops.clip(log_prob - old_log_prob, -30.0, 30.0))


def trust_region(gradient: Tensor, normal: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Return the vector z nearest to a gradient g with `k z <= limit`, where k is the gradient of a KL divergence.

    Wang et al. (2017), equation 12: `z = g - max(0, (k g - limit) / |k|^2) k`.

    Args:
        gradient: g, `[..., A]`.
        normal: k, `[..., A]`.
        limit: delta.

    Returns:
        z `[..., A]`, and whether it differs from g, 1 or 0 `[...]`.

    Example:
    >>> from keras import ops
    >>> from noterl import losses
    >>> gradient, normal = ops.array([[3.0, 1.0]]), ops.array([[2.0, 0.0]])
    >>> z, changed = losses.trust_region(gradient, normal, 1.0)
    >>> [float(value) for value in z[0]], float(changed[0])
    ([0.5, 1.0], 1.0)
    """
    excess = ops.sum(normal * gradient, axis=-1, keepdims=True) - limit
    scale = ops.relu(excess) / ops.maximum(ops.sum(ops.square(normal), axis=-1, keepdims=True), 1e-8)
    return gradient - scale * normal, ops.cast(excess[..., 0] > 0, "float32")


def clipped_surrogate(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: Tensor) -> Tensor:
    """Return the clipped surrogate loss of each row; all `[B]`.

    `-min(r A, clip(r, 1 - clip, 1 + clip) A)` with `r = exp(log_prob - old_log_prob)`: Schulman et al., "Proximal
    policy optimization algorithms", 2017, equation 7.
    """
    ratio = ops.exp(log_prob - old_log_prob)
    return -ops.minimum(ratio * advantage, ops.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def value_error(value: Tensor, target: Tensor, old_value: Tensor | None = None, clip: Tensor | None = None) -> Tensor:
    """Return the squared error of each value; all `[B]`.

    With `clip`, the loss of OpenAI's baselines: the maximum of this error and the error of the value clipped to
    `old_value ± clip`, which limits changes of the value.
    """
    error = ops.square(value - target)
    if old_value is None or clip is None:
        return error
    bound = ops.convert_to_tensor(clip)
    clipped = old_value + ops.clip(value - old_value, -bound, bound)
    return ops.maximum(error, ops.square(clipped - target))


def approximate_kl(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Return an unbiased, non-negative estimate of KL(old, new) for each row, `(r - 1) - log r`.

    Schulman, "Approximating KL divergence", 2020.
    """
    log_ratio = log_prob - old_log_prob
    return ops.exp(log_ratio) - 1.0 - log_ratio
