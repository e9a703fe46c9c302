"""Record the losses of d3rlpy's TD3+BC, ReBRAC, IQL and discrete CQL on one batch.

    python -m venv .venv-d3rlpy && .venv-d3rlpy/bin/python -m pip install torch==2.13.0 d3rlpy==2.8.1
    .venv-d3rlpy/bin/python -m benchmarks.peers.offline_update

d3rlpy needs an environment of its own, because it pins gymnasium 1.0.0. Weights and batch come from a seed. The result
holds them, the noise of the targets and the losses; benchmarks/tests/test_offline_update.py compares noterl with it.
d3rlpy's IQL has a Gaussian that is not squashed, so its loss of the actor is computed with d3rlpy's squashed Gaussian.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.evaluation import versions
from benchmarks.processes import RESULTS, machine, store

ROWS, OBSERVATION, ACTIONS, HIDDEN = 32, 3, 2, (5, 4)
PATH = RESULTS / "peers" / "offline_update.json"
PACKAGES = ("numpy", "gymnasium", "d3rlpy", "torch")
NAMES = ("TD3BC", "ReBRAC", "IQL", "CQL")
# Under noterl's names.
SETTINGS: dict[str, Any] = {
    "gamma": 0.9,
    "TD3BC": {"alpha": 2.5, "target_noise": 0.2, "target_noise_clip": 0.5},
    "ReBRAC": {"actor_beta": 0.05, "critic_beta": 0.5, "target_noise": 0.2, "target_noise_clip": 0.5},
    "IQL": {"expectile": 0.7, "temperature": 3.0},
    "CQL": {"alpha": 1.5},
}


def batch(name: str, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the rows of a batch; some actions of Box spaces are at the bounds."""
    shape = (ROWS, OBSERVATION)
    actions = [generator.uniform(-1.2, 1.2, (ROWS, ACTIONS)).clip(-1, 1).astype(np.float32) for _ in range(2)]
    return {
        "observation": generator.normal(size=shape).astype(np.float32),
        "action": generator.integers(3, size=ROWS) if name == "CQL" else actions[0],
        "reward": generator.normal(scale=1.5, size=ROWS).astype(np.float32),
        "next_observation": generator.normal(size=shape).astype(np.float32),
        "next_action": actions[1],
        "terminated": generator.random(ROWS) < 0.2,
    }


def make(name: str) -> Any:
    """Return d3rlpy's algorithm with a built implementation."""
    from d3rlpy import algos
    from d3rlpy.models.encoders import VectorEncoderFactory
    from d3rlpy.models.torch.policies import build_squashed_gaussian_distribution

    settings = dict(SETTINGS[name])
    words = {
        "target_noise": "target_smoothing_sigma",
        "target_noise_clip": "target_smoothing_clip",
        "temperature": "weight_temp",
    }
    settings = {words.get(key, key): value for key, value in settings.items()}
    encoder = VectorEncoderFactory(list(HIDDEN))
    config = {"TD3BC": "TD3PlusBC", "CQL": "DiscreteCQL"}.get(name, name) + "Config"
    encoders = ["encoder_factory"] if name == "CQL" else ["actor_encoder_factory", "critic_encoder_factory"]
    encoders += ["value_encoder_factory"] if name == "IQL" else []
    arguments = {**dict.fromkeys(encoders, encoder), **settings}
    algorithm = getattr(algos, config)(gamma=SETTINGS["gamma"], **arguments).create(device="cpu")
    algorithm.create_impl((OBSERVATION,), 3 if name == "CQL" else ACTIONS)
    if name == "IQL":
        from d3rlpy.algos.qlearning.torch import iql_impl

        iql_impl.build_gaussian_distribution = build_squashed_gaussian_distribution
    return algorithm.impl


def modules(name: str, impl: Any) -> dict[str, Any]:
    """Return the networks under noterl's names, as modules."""
    from d3rlpy.models.builders import create_normal_policy
    from d3rlpy.models.encoders import VectorEncoderFactory

    own = impl._modules
    if name == "CQL":
        return {"q": own.q_funcs[0], "target_q": own.targ_q_funcs[0]}
    found = {"actor": own.policy}
    if name == "IQL":
        # Deviations that depend on the observation, as in noterl.
        found["actor"] = create_normal_policy((OBSERVATION,), ACTIONS, VectorEncoderFactory(list(HIDDEN)), "cpu", False)
        found["state_value"] = own.value_func
    else:
        found["target_actor"] = own.targ_policy
    found |= {f"critics {k}": own.q_funcs[k] for k in (0, 1)}
    return {**found, **{f"target_critics {k}": own.targ_q_funcs[k] for k in (0, 1)}}


def weights(module: Any) -> list[Any]:
    """Return the weights of a network in Keras's layout; mean and deviation of a Gaussian are one layer."""
    values = [parameter.detach().numpy().T for parameter in module.parameters()]
    if len(values) > 6:
        values = [*values[:4], np.concatenate(values[4::2], axis=-1), np.concatenate(values[5::2], axis=-1)]
    return [value.tolist() for value in values]


def record(name: str) -> dict[str, Any]:
    """Return weights and batch, and the losses."""
    import torch
    from d3rlpy.torch_utility import TorchMiniBatch

    generator = np.random.default_rng(11)
    impl = make(name)
    networks = modules(name, impl)
    for module in networks.values():
        for parameter in module.parameters():
            values = generator.normal(scale=0.5, size=tuple(parameter.shape)).astype(np.float32)
            parameter.data.copy_(torch.from_numpy(values))
    rows = batch(name, generator)
    columns = {key: torch.from_numpy(value).reshape(ROWS, -1) for key, value in rows.items()}
    data = TorchMiniBatch(
        observations=columns["observation"],
        actions=columns["action"],
        rewards=columns["reward"],
        next_observations=columns["next_observation"],
        next_actions=columns["next_action"],
        returns_to_go=torch.zeros(ROWS, 1),
        terminals=columns["terminated"].float(),
        intervals=torch.ones(ROWS, 1),
        device="cpu",
    )
    noise = torch.zeros(ROWS, ACTIONS)
    if name in ("TD3BC", "ReBRAC"):
        torch.manual_seed(0)
        noise = torch.randn(ROWS, ACTIONS)
    torch.manual_seed(0)
    target = impl.compute_target(data)
    if name == "CQL":
        found = impl.compute_loss(data, target)
        losses = {"loss": found.loss, "conservative_loss": found.conservative_loss}
    else:
        found = impl.compute_critic_loss(data, target)
        losses = {"loss": found.q_loss, "value_loss": found.v_loss} if name == "IQL" else {"loss": found.critic_loss}
        losses["actor_loss"] = impl.compute_actor_loss(data, networks["actor"](data.observations)).actor_loss
    return {
        "name": name,
        **{key: value.tolist() for key, value in rows.items()},
        "target_noise": noise.tolist(),
        "weights": {key: weights(module) for key, module in networks.items()},
        "losses": {key: float(value.detach()) for key, value in losses.items()},
    }


if __name__ == "__main__":
    runs = [record(name) for name in NAMES]
    store({"settings": SETTINGS, "machine": machine(), "versions": versions(PACKAGES), "runs": runs}, PATH)
