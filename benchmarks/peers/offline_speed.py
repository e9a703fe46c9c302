"""Train d3rlpy's TD3+BC or IQL on random rows, and print the updates per second as JSON.

    .venv-d3rlpy/bin/python -m benchmarks.peers.offline_speed TD3BC 2000

The environment is that of `peers/offline_update.py`. Networks have two layers of 256 units and batches 256 rows, as by
default in noterl. The updates of the first call, which builds the networks, are not timed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.evaluation import print_json
from benchmarks.offline_speed import BATCH, HIDDEN, rows


def main(name: str, updates: int) -> None:
    from d3rlpy import algos
    from d3rlpy.dataset import MDPDataset
    from d3rlpy.logging import NoopAdapterFactory
    from d3rlpy.models.encoders import VectorEncoderFactory

    encoder = VectorEncoderFactory(list(HIDDEN))
    encoders = dict.fromkeys(("actor_encoder_factory", "critic_encoder_factory"), encoder)
    if name == "IQL":
        encoders["value_encoder_factory"] = encoder
    config = {"TD3BC": algos.TD3PlusBCConfig, "IQL": algos.IQLConfig}[name]
    algorithm = config(batch_size=BATCH, **encoders).create(device="cpu")
    dataset = MDPDataset(**rows())

    def train(count: int) -> Any:
        # One epoch that saves nothing, so that the time is that of the updates.
        options: dict[str, Any] = {"n_steps_per_epoch": count, "save_interval": count + 1, "show_progress": False}
        return algorithm.fit(dataset, n_steps=count, logger_adapter=NoopAdapterFactory(), **options)

    train(max(1, updates // 10))
    started = time.perf_counter()
    train(updates)
    print_json({"updates_per_second": updates / (time.perf_counter() - started)})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
