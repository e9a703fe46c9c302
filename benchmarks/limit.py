"""Measure updates beside a bare program of the same framework, and beside the machine's matrix products.

    OMP_NUM_THREADS=2 python -m benchmarks.limit --backend jax
    OMP_NUM_THREADS=1 python -m benchmarks.limit --backend torch --cases dqn sac --blocks 5

A bare program (`benchmarks/bare/`) makes the same update and nothing else: it has no logs, no check for finite numbers
and no report of weights. On JAX and TensorFlow it is one compiled loop over a group of updates (for images, a call for
each update), on torch eager code with the fused `torch.optim.Adam`. noterl's learner runs the same groups. Each side
samples its batches: noterl from its replay memory, the bare program from plain arrays. For PPO, both sides receive the
same prepared rollout.

Both sides run in one process, in blocks that alternate. The ratio is that of noterl's time to the bare program's, so a
small ratio is good. The bar is met if the upper end of the interval is at most 1.1. A result of at least 15 blocks is
stored in benchmarks/results/limit/BACKEND.json when its case ends, and replaces an older one of this case. Threads are
those of the environment, such as `OMP_NUM_THREADS`.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.evaluation import versions
from benchmarks.processes import RESULTS, machine, store, warn_if_busy
from benchmarks.report import limit_table
from benchmarks.summaries import summarize_pairs

BACKENDS = ("jax", "torch", "tensorflow")
BLOCKS, SECONDS, BAR = 15, 0.25, 1.1
LEARNING_RATE, GAMMA = 3e-4, 0.99
PRODUCT = 512  # rows and columns of the matrices of the peak
PRODUCTS = 10  # of a call
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "TF_NUM_INTRAOP_THREADS", "XLA_FLAGS")


class Layer(NamedTuple):
    """A product: `positions` rows of `inputs` values for each transition, by `inputs` times `outputs` weights."""

    inputs: int
    outputs: int
    positions: int = 1


def dense(*sizes: int) -> list[Layer]:
    return [Layer(*pair) for pair in itertools.pairwise(sizes)]


# The network of Mnih et al. (2015) for images of 84x84 pixels and 4 frames, without its last layer.
NATURE = [Layer(256, 32, 400), Layer(512, 64, 81), Layer(576, 64, 49), Layer(3136, 512)]


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        algorithm: name in `benchmarks.bare.updates.UPDATES`.
        observation: shape of an observation; images of bytes if it has three axes.
        actions: number of discrete actions, or of values in an action.
        hidden: units of the hidden layers; images use the Nature paper's network.
        batch_size: transitions of an update.
        updates: updates of a group.
        stored: transitions in the memory.
        precision: of noterl's networks in updates.
    """

    algorithm: str
    observation: tuple[int, ...]
    actions: int
    hidden: tuple[int, ...]
    batch_size: int
    updates: int
    stored: int = 20_000
    precision: str = "float32"

    @property
    def is_image(self) -> bool:
        return len(self.observation) == 3


CASES = {
    "dqn": Case("dqn", (4,), 2, (256, 256), 64, 64),
    "dqn-images": Case("dqn", (84, 84, 4), 6, (), 32, 4, stored=2_000),
    "ppo": Case("ppo", (4,), 2, (64, 64), 256, 16, stored=1_024),
    "sac": Case("sac", (3,), 1, (256, 256), 256, 16),
    "td3": Case("td3", (3,), 1, (256, 256), 256, 16),
}
LANES = 8  # of PPO's rollout


# Arithmetic of an update


def update_flops(case: Case) -> float:
    """Return the floating-point operations of the matrix products and convolutions of one update.

    A product of `[B, I]` and `[I, O]` takes 2 B I O. So do the gradients of its weights and of its inputs. The first
    layer of a network needs no gradient of its inputs, unless these are actions of another network.
    """
    size, actions, hidden = int(np.prod(case.observation)), case.actions, case.hidden

    def forward(layers: Sequence[Layer]) -> float:
        return float(sum(2 * case.batch_size * layer.inputs * layer.outputs * layer.positions for layer in layers))

    def train(layers: Sequence[Layer]) -> float:
        return 2 * forward(layers) + forward(layers[1:])

    if case.algorithm == "dqn":
        q = [*NATURE, Layer(512, actions)] if case.is_image else dense(size, *hidden, actions)
        return train(q) + forward(q)
    if case.algorithm == "ppo":
        return train(dense(size, *hidden, actions)) + train(dense(size, *hidden, 1))
    critic, width = dense(size + actions, *hidden, 1), {"sac": 2, "td3": 1}[case.algorithm]
    actor = dense(size, *hidden, width * actions)
    critics = forward(actor) + 2 * forward(critic) + 2 * train(critic)
    if case.algorithm == "sac":
        return critics + train(actor) + 2 * 2 * forward(critic)
    return critics + 0.5 * (train(actor) + 2 * forward(critic))  # the actor learns in every second update


# noterl's side


def make_agent(case: Case, seed: int = 0) -> Any:
    """Return the agent, compiled; its memory is empty."""
    import gymnasium
    import keras

    import noterl
    from benchmarks.bare.updates import EPSILON

    low, high = (0, 255) if case.is_image else (-np.inf, np.inf)
    observation = gymnasium.spaces.Box(low, high, case.observation, np.uint8 if case.is_image else np.float32)
    options: dict[str, Any] = {"gamma": GAMMA, "seed": seed}
    if case.algorithm in ("dqn", "ppo"):
        space: Any = gymnasium.spaces.Discrete(case.actions)
    else:
        space = gymnasium.spaces.Box(-2.0, 2.0, (case.actions,), np.float32)
    if not case.is_image:
        options["hidden"] = case.hidden
    if case.algorithm == "ppo":
        epochs = case.updates * case.batch_size // case.stored
        agent: Any = noterl.PPO(
            (observation, space),
            rollout_steps=case.stored // LANES,
            epochs=epochs,
            entropy_coefficient=0.01,
            **options,
        )
        optimizer = keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON, global_clipnorm=0.5)
        agent.compile(optimizer, batch_size=case.batch_size, precision=case.precision)
        return agent
    makers = {"dqn": lambda: noterl.DQN((observation, space), double=False, **options)}
    makers["sac"] = lambda: noterl.SAC((observation, space), **options)
    makers["td3"] = lambda: noterl.TD3((observation, space), **options)
    agent = makers[case.algorithm]()
    agent.compile(
        keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON),
        replay=noterl.Replay(case.stored),
        batch_size=case.batch_size,
        precision=case.precision,
        update_every=case.updates,
        updates=case.updates,
        target_update=1_000_000 if case.algorithm == "dqn" else 0.005,
    )
    return agent


def make_arrays(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """Return transitions of one long episode; the observations have one more row: the last one."""
    generator = np.random.default_rng(seed)
    rows = (case.stored + 1, *case.observation)
    if case.is_image:
        observation: np.ndarray = generator.integers(0, 256, rows, np.uint8)
    else:
        observation = generator.standard_normal(rows, np.float32)
    if case.algorithm in ("dqn", "ppo"):
        action: np.ndarray = generator.integers(0, case.actions, case.stored)
    else:
        action = generator.uniform(-2.0, 2.0, (case.stored, case.actions)).astype(np.float32)
    reward = generator.standard_normal(case.stored).astype(np.float32)
    return {"observation": observation, "action": action, "reward": reward}


def fill(learner: Any, case: Case, arrays: dict[str, np.ndarray]) -> None:
    """Store the transitions in the memory, or as the rollout of `LANES` environments."""
    from noterl.types import Transition

    observation, action, reward = arrays["observation"], arrays["action"], arrays["reward"]
    if case.algorithm != "ppo":
        learner.open(1)
        for k in range(case.stored):
            learner.add(Transition(0, observation[k], action[k], reward[k], observation[k + 1], False, False))
        return
    learner.open(LANES)
    length = case.stored // LANES
    lanes = np.arange(LANES) * length
    for step in range(length):
        learner.begin_round(observation[lanes + step], action[lanes + step], {})
        for lane, row in enumerate(lanes + step):
            learner.add(Transition(lane, None, None, reward[row], observation[row + 1], False, False))
        learner.end_round()


# The bare program's side


def read_weights(case: Case, agent: Any) -> dict[str, list[np.ndarray]]:
    """Return the agent's weights in the groups of the bare program."""
    from noterl.backends import current
    from noterl.networks import get_weights

    def both(networks: Sequence[Any]) -> list[np.ndarray]:
        return [array for network in networks for array in get_weights(network)]

    if case.algorithm == "dqn":
        return {"q": get_weights(agent.q), "target_q": get_weights(agent.target_q)}
    if case.algorithm == "ppo":
        return {"networks": both([agent.actor, agent.critic])}
    found = {
        "actor": get_weights(agent.actor),
        "critic": both(agent.critics),
        "target_critic": both(agent.target_critics),
    }
    if case.algorithm == "td3":
        return {**found, "target_actor": get_weights(agent.target_actor)}
    return {**found, "temperature": [np.asarray(current().fetch(agent.log_temperature.value), np.float32)]}


def make_bare(case: Case, agent: Any, learner: Any) -> Any:
    """Return the bare program with the agent's weights; that of PPO holds the learner's prepared rollout."""
    from benchmarks.bare.updates import UPDATES
    from noterl import backends

    data = None
    if case.algorithm == "ppo":
        fetch, rows = backends.current().fetch, learner.prepared_rows
        names = ("log_prob", "advantage", "target")
        data = {"observation": rows.observation, "action": rows.action, **{name: rows.extra[name] for name in names}}
        data = {name: np.asarray(fetch(array)) for name, array in data.items()}
    module = importlib.import_module(f"benchmarks.bare.in_{backends.name()}")
    return module.Program(
        UPDATES[case.algorithm],
        read_weights(case, agent),
        learning_rate=LEARNING_RATE,
        action_factor=0.5,
        data=data,
        separate=case.is_image,
    )


def noise_names(case: Case) -> tuple[str, ...]:
    return {"sac": ("noise", "next_noise"), "td3": ("target_noise",)}.get(case.algorithm, ())


def gather(case: Case, arrays: dict[str, np.ndarray], generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Return batches `[K, B, ...]` of random transitions, with random numbers."""
    indices = generator.integers(0, case.stored, (case.updates, case.batch_size))
    rows = {name: array[indices] for name, array in arrays.items()}
    rows["next_observation"] = arrays["observation"][indices + 1]
    rows["discount"] = np.full(indices.shape, GAMMA, np.float32)
    for name in noise_names(case):
        rows[name] = generator.standard_normal((*indices.shape, case.actions), np.float32)
    return rows


def permutations(case: Case, generator: np.random.Generator) -> np.ndarray:
    """Return the row indices `[K, B]` of the minibatches of all epochs of PPO."""
    epochs = case.updates * case.batch_size // case.stored
    orders = [generator.permutation(case.stored) for _ in range(epochs)]
    return np.concatenate(orders).astype(np.int32).reshape(-1, case.batch_size)


def prepare(case: Case) -> tuple[Any, dict[str, np.ndarray]]:
    """Return an agent that is ready to learn, and the transitions that it has stored."""
    agent, arrays = make_agent(case), make_arrays(case)
    learner = agent._parts.build()[0]
    fill(learner, case, arrays)
    # As in a long run, because torch does not trace losses in the first updates. At this number it chooses its threads.
    agent._counters.updates = max(128 * case.updates, 1_024)
    if case.algorithm == "ppo":
        learner.sample(case.updates)  # prepares the rollout
    return agent, arrays


def make_ours(case: Case, agent: Any) -> Callable[[], None]:
    """Return a function that makes a group of noterl's updates."""
    learner, count, generator = agent._parts.build()[0], case.updates, np.random.default_rng(1)

    def ours() -> None:
        sample = permutations(case, generator) if case.algorithm == "ppo" else learner.sample(count)
        with learner.batches([sample], learner.call_size(count)) as batches:
            applied = sum(learner.update(batch, count).applied for batch in batches)
        agent._counters.updates += count
        assert applied == count, f"{applied} of {count} updates were finite"

    return ours


def make_sides(case: Case) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return functions that make a group of updates: noterl's and the bare program's."""
    agent, arrays = prepare(case)
    bare, generator = make_bare(case, agent, agent._parts.build()[0]), np.random.default_rng(1)

    def theirs() -> None:
        if case.algorithm == "ppo":
            bare({"indices": permutations(case, generator)})
        else:
            bare(gather(case, arrays, generator))

    return make_ours(case, agent), theirs


# Measuring


def alternate(
    sides: Sequence[Callable[[], None]], blocks: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Return the seconds of a call, for each side and block.

    The first calls, which compile, are not measured. The sides take turns, and every second block reverses their order.
    """
    for side in sides:
        for _ in range(2):
            side()
    begin = clock()
    sides[0]()
    calls = max(1, round(seconds / max(clock() - begin, 1e-9)))
    found: list[list[float]] = [[] for _ in sides]
    for block in range(blocks):
        order = list(range(len(sides)))
        for number in order if block % 2 == 0 else order[::-1]:
            gc.collect()
            begin = clock()
            for _ in range(calls):
                sides[number]()
            found[number].append((clock() - begin) / calls)
    return found


def measure(
    sides: Sequence[Callable[[], None]], product: Callable[[int], None], blocks: int, seconds: float
) -> tuple[list[list[float]], float]:
    """Return the times of both sides, and the GFLOP/s of a product of two matrices, measured in the same blocks."""
    *times, products = alternate([*sides, lambda: product(PRODUCTS)], blocks, seconds)
    return times, PRODUCTS * 2 * PRODUCT**3 / float(np.median(products)) / 1e9


def make_row(name: str, case: Case, times: Sequence[Sequence[float]], peak: float) -> dict[str, Any]:
    """Return the stored row of a case; times are in microseconds for an update."""
    ours, theirs = ([1e6 * each / case.updates for each in side] for side in times)
    found: dict[str, Any] = {
        "case": name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "threads": {variable: os.environ[variable] for variable in THREADS if variable in os.environ},
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "batch_size": case.batch_size,
        "updates": case.updates,
        "flops": update_flops(case),
        "peak": peak,
        **summarize_pairs(ours, theirs, BAR),
    }
    return {**found, "runs": {"ours": ours, "theirs": theirs}}


def merge(result: dict[str, Any], path: Path) -> None:
    """Store a result; cases of the stored one that it does not hold remain."""
    if path.exists():
        own = {row["case"] for row in result["runs"]}
        kept = [row for row in json.loads(path.read_text())["runs"] if row["case"] not in own]
        order = list(CASES)
        rows = sorted([*kept, *result["runs"]], key=lambda row: order.index(row["case"]))
        result = {**result, "runs": rows}
    store(result, path)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], prog="limit.py")
    parser.add_argument("--backend", required=True, choices=BACKENDS)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=f"pairs of blocks; {BLOCKS} or more are stored")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a block, approximately")
    parser.add_argument("--results", type=Path, default=RESULTS / "limit", help="the folder of the results")
    arguments = parser.parse_args(words)
    if arguments.blocks < 1:
        parser.error(f"--blocks must be at least 1, got {arguments.blocks}")
    if not arguments.seconds > 0:
        parser.error(f"--seconds must be positive, got {arguments.seconds}")
    return arguments


def main(words: Sequence[str] | None = None) -> None:
    """Measure the cases, store each when it ends, and print the table."""
    arguments = parse(words)
    os.environ["KERAS_BACKEND"] = arguments.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    start = machine()
    warn_if_busy(start)
    result: dict[str, Any] = {
        "task": "limit",
        "backend": arguments.backend,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": start,
        "versions": versions(("noterl", "numpy", "keras", "jax", "torch", "tensorflow", "tensorflow-cpu")),
        "runs": [],
    }
    product = importlib.import_module(f"benchmarks.bare.in_{arguments.backend}").product(PRODUCT)
    path = arguments.results / f"{arguments.backend}.json"
    for name in arguments.cases:
        case = CASES[name]
        times, peak = measure(make_sides(case), product, arguments.blocks, arguments.seconds)
        result["runs"].append(make_row(name, case, times, peak))
        print(f"{name}: {result['runs'][-1]['ratio']['ratio']:.2f}", file=sys.stderr, flush=True)
        if arguments.blocks >= BLOCKS:
            merge(result, path)
    print(limit_table(result))
    if arguments.blocks >= BLOCKS:
        print(f"\nstored in {path}")


if __name__ == "__main__":
    main()
