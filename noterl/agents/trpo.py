"""Trust region policy optimization.

Paper: Schulman et al., "Trust region policy optimization", 2015: the surrogate and the constraint of equation 14, and
the step of appendix C. Advantages: Schulman et al., "High-dimensional continuous control using generalized advantage
estimation", 2016, equation 16.

Differs: states come from single rollouts (the paper's single path). As in the TRPO of Stable-Baselines3 Contrib, the
Fisher matrix is damped, advantages are normalized over the rollout, and values are fitted by minibatches of Adam. The
divergence is KL(old, new) as in the paper, summed over the values of an action. Stable-Baselines3 Contrib limits
KL(new, old) in the line search, and averages it over the values of Box and MultiBinary actions. Advantages are divided
by the standard deviation of the population, not of the sample. An entropy bonus can be added.
"""

from __future__ import annotations

from typing import Any, Unpack

from noterl import losses, networks
from noterl.agent import Defaults
from noterl.agents.actor_critic import ActorCritic, ActorCriticOptions, masks
from noterl.backends import keras, ops
from noterl.hyperparameters import Hyperparameter
from noterl.learning import natural_gradient
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch, map_arrays
from noterl.utils.checks import check_bool, check_positive

# What the update of the policy logs.
METRICS = ("surrogate_gain", "kl", "step_accepted", "line_search_steps", "cg_iterations", "cg_residual", "entropy")


@register
class TRPO(ActorCritic):
    """Trust region policy optimization for Discrete, MultiDiscrete, MultiBinary and Box actions, on vectors and images.

    After each rollout, the policy makes one natural-gradient step within a trust region. The critic is then fitted to
    the value targets in several epochs of minibatches. Actor and critic share no layers. The only optimizer
    is for the critic.

    Args:
        env: see `noterl.Agent`.
        gamma: discount factor, 0 to 1; near 1 for long tasks. Can be changed during training.
        gae_lambda: 0 gives one-step advantages; 1 gives advantages of whole rollouts, with less bias and more variance.
            Can be changed during training.
        rollout_steps: steps of each environment between updates.
        epochs: passes of the critic over each rollout.
        target_kl: the KL divergence of the longest step. Can be changed during training.
        kl_tolerance: a step is refused if its divergence exceeds this multiple of `target_kl`. Can be changed during
            training.
        cg_iterations: the most iterations of the conjugate gradients.
        cg_damping: this multiple of the identity is added to the Fisher matrix; higher makes steps more careful. Can be
            changed during training.
        cg_residual_tolerance: the conjugate gradients end earlier if the squared norm of the residual is at most this.
            Can be changed during training.
        line_search_steps: the most steps that the line search tries. If none is accepted, the policy does not change.
        line_search_shrink: each step that is tried is this multiple of the one before, 0 to 1. Can be changed during
            training.
        fisher_stride: Fisher-vector products use every n-th step of a rollout; higher saves time.
        entropy_coefficient: weight of the entropy in the objective; higher explores more. Can be changed during
            training.
        normalize_advantage: whether advantages are shifted and scaled within the rollout.
        hidden: units of each hidden layer for vector observations; images use the network of Mnih et al. (2015).
        network: the path of a network file, or your own actor `[B, observation] -> [B, outputs of the head]`; or
            (actor, critic), with a critic `[B, observation] -> [B, 1]`. The agent builds a network that is None. For
            Discrete actions, the actor returns logits, or probabilities if its last layer is a softmax.
        activation: of the hidden layers.
        log_std: the initial log standard deviations of Box actions; they do not depend on the observation.
        seed: see `noterl.Agent`.
        normalize_observation: see `noterl.Agent`.
        normalize_reward: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, actor and critic share weights, or an argument is not one of the
            allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.TRPO("CartPole-v1", rollout_steps=16, epochs=2, hidden=(16,), seed=7)
    >>> history = agent.fit(steps=64, num_envs=2, verbose=0)
    >>> agent.updates
    4
    """

    supports_replay = False  # the trust region is one around the policy that collected the rollout
    optimizer_names: tuple[str, ...] = ("critic",)
    target_kl: Hyperparameter
    kl_tolerance: Hyperparameter
    cg_damping: Hyperparameter
    cg_residual_tolerance: Hyperparameter
    line_search_shrink: Hyperparameter

    def __init__(
        self,
        env: Any,
        *,
        gamma: float | Schedule = 0.99,
        gae_lambda: float | Schedule = 0.95,
        rollout_steps: int = 2048,
        epochs: int = 10,
        target_kl: float | Schedule = 0.01,
        kl_tolerance: float | Schedule = 1.0,
        cg_iterations: int = 15,
        cg_damping: float | Schedule = 0.1,
        cg_residual_tolerance: float | Schedule = 1e-10,
        line_search_steps: int = 10,
        line_search_shrink: float | Schedule = 0.8,
        fisher_stride: int = 1,
        entropy_coefficient: float | Schedule = 0.0,
        normalize_advantage: bool = True,
        **options: Unpack[ActorCriticOptions],
    ) -> None:
        if options.get("shared"):
            raise ValueError("shared must be False for TRPO, because updates of the critic would move the policy")
        options["shared"] = False
        super().__init__(env, **options)
        if self.critic is None:
            raise ValueError("network must be the actor, or (actor, critic); one network for both is not supported")
        actor, critic = (set(map(id, networks.variables(network))) for network in (self.actor, self.critic))
        if actor & critic:
            raise ValueError("network must be an actor and a critic that share no layers")
        self.normalize_advantage: bool = check_bool("normalize_advantage", normalize_advantage)
        self.rollout_steps: int = check_positive("rollout_steps", rollout_steps)
        self.epochs: int = check_positive("epochs", epochs)
        self.cg_iterations: int = check_positive("cg_iterations", cg_iterations)
        self.line_search_steps: int = check_positive("line_search_steps", line_search_steps)
        self.fisher_stride: int = check_positive("fisher_stride", fisher_stride)
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        self.gae_lambda = self.hyperparameter("gae_lambda", gae_lambda, minimum=0.0, maximum=1.0)
        self.target_kl = self.hyperparameter("target_kl", target_kl, minimum=0.0)
        self.kl_tolerance = self.hyperparameter("kl_tolerance", kl_tolerance, minimum=0.0)
        self.cg_damping = self.hyperparameter("cg_damping", cg_damping, minimum=0.0)
        self.cg_residual_tolerance = self.hyperparameter("cg_residual_tolerance", cg_residual_tolerance, minimum=0.0)
        self.line_search_shrink = self.hyperparameter(
            "line_search_shrink", line_search_shrink, minimum=0.0, maximum=1.0
        )
        self.entropy_coefficient = self.hyperparameter("entropy_coefficient", entropy_coefficient)

    def defaults(self) -> Defaults:
        """Return the settings of Stable-Baselines3 Contrib."""
        return Defaults(batch_size=128, optimizer=keras.optimizers.Adam(1e-3, epsilon=1e-5))

    def surrogate(self, rows: Batch) -> tuple[Any, Any]:
        """Return the objective of the policy and its mean divergence from the policy that collected the rows.

        The objective is the mean of the advantages, weighted by the ratio of probabilities, plus the weighted entropy.

        Args:
            rows: with the fields `outputs` (the head's input before the step), `log_prob` and `advantage` in `extra`.
        """
        old = rows.extra
        weight = rows.weight
        outputs = self.outputs(rows.observation, old.get("action_mask"))
        ratio = ops.exp(self.head.log_prob(outputs, rows.action) - old["log_prob"])
        gain = losses.masked_mean(ratio * old["advantage"], weight)
        entropy = losses.masked_mean(self.head.entropy(outputs), weight)
        divergence = losses.masked_mean(self.head.kl_divergence(old["outputs"], outputs), weight)
        return gain + self.entropy_coefficient * entropy, divergence

    def prepare(self, rollout: Batch) -> dict[str, Any]:
        """Update the policy; return values, advantages, value targets and the step's metrics, all `[T, N]`."""
        fields = super().prepare(rollout)
        legal = masks(rollout)
        outputs = ops.stop_gradient(losses.map_rows(self.outputs, rollout.observation, *legal))
        old = {"outputs": outputs, "log_prob": ops.stop_gradient(fields["log_prob"]), "advantage": fields["advantage"]}
        old |= {"action_mask": legal[0]} if legal else {}
        metrics = self._update_policy(rollout._replace(extra=old))
        # Minibatches hold only rows, so each row has the metrics; `update` reads those of the first.
        return {**fields, **{name: ops.broadcast_to(metrics[name], tuple(rollout.reward.shape)) for name in METRICS}}

    def _update_policy(self, rollout: Batch) -> dict[str, Any]:
        """Make the step of the policy on a rollout `[T, N]` and return its metrics."""
        rows = map_arrays(losses.rows_of, rollout)
        fisher_rows = map_arrays(losses.rows_of, map_arrays(lambda array: array[:: self.fisher_stride], rollout))
        if self.normalize_advantage:
            advantage = losses.normalize(rows.extra["advantage"], rows.weight)
            rows = rows._replace(extra={**rows.extra, "advantage": advantage})
        trained = networks.trainable_variables(self.actor)
        metrics = natural_gradient.step(
            lambda: self.surrogate(rows), lambda: self.surrogate(fisher_rows)[1], trained, self
        )
        entropy = losses.masked_mean(self.head.entropy(rows.extra["outputs"]), rows.weight)
        return {**metrics, "entropy": entropy}

    def value_loss(self, batch: Batch) -> Any:
        """Return the mean squared error of the values."""
        error = losses.value_error(self.value(batch.observation), batch.extra["target"])
        return losses.masked_mean(error, batch.weight)

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one gradient step of the critic on a minibatch; `prepare` has updated the policy."""
        loss, _ = self.minimize(self.value_loss, self.critic, "critic", batch)
        return {"loss": loss, "value_loss": loss, **{name: batch.extra[name][0] for name in METRICS}}, {}
