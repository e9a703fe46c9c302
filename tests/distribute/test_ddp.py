"""DDP: two processes on loopback make one training, end together, and leave no process behind."""

from __future__ import annotations

import io
import json
import re
import socket
import sys
from functools import partial
from pathlib import Path

import pytest

import noterl
from tests.support.launching import EQUIVALENCE, RANK_RUN
from tests.support.launching import launch as launch_ranks
from tests.support.replica_equivalence import assert_equivalent

pytestmark = [pytest.mark.backends("torch"), pytest.mark.slow]

launch = partial(launch_ranks, "ddp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of nine runs of two processes, in which each of them has recorded what it did."""
    folder = tmp_path_factory.mktemp("ddp")
    code, output = launch(RANK_RUN, "train,stop,rollouts,sequences,diverge,follow,count,remember,anneal", folder)
    assert code == 0, output
    return folder


def recorded(folder: Path, mode: str) -> list[dict]:
    return [json.loads((folder / f"{mode}-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture
def trained(folder: Path) -> tuple[Path, list[dict]]:
    """Return the folder, and what each process has recorded of the first run."""
    return folder, recorded(folder, "train")


def test_ranks_have_the_same_weights_and_counts(trained: tuple[Path, list[dict]]) -> None:
    _, (chief, other) = trained
    for own, others in zip(chief["fits"], other["fits"], strict=True):
        for name in ("weights", "steps", "updates", "episodes", "reason", "learning_rate"):
            assert own[name] == others[name], name
    assert chief["fits"][0]["learning_rate"] == pytest.approx(0.002)  # a callback of the chief has set it


def test_budgets_count_over_all_ranks(trained: tuple[Path, list[dict]]) -> None:
    _, (chief, _) = trained
    first, second = chief["fits"]
    assert first["steps"] == 301 and first["reason"] == "steps"
    # 301 // 16 - 64 // 16 groups of 4 updates: frequencies count the steps of both processes.
    assert first["updates"] == 4 * (301 // 16 - 64 // 16)
    assert second["episodes"] == first["episodes"] + 5 and second["reason"] == "episodes"
    assert len(second["rank"]) == 5


def test_history_of_the_chief_holds_the_episodes_of_all_ranks(trained: tuple[Path, list[dict]]) -> None:
    _, (chief, other) = trained
    for own, others in zip(chief["fits"], other["fits"], strict=True):
        theirs = [number for number, rank in zip(own["numbers"], own["rank"], strict=True) if rank == 1]
        assert set(own["rank"]) <= {0, 1} and theirs == others["numbers"]
        assert len(set(own["numbers"])) == len(own["numbers"])
    assert {0, 1} == set(chief["fits"][0]["rank"])
    # Every begin has its end, also for episodes of the other rank.
    assert sorted(chief["began"]) == sorted(chief["ended"])


def test_number_of_an_episode_is_not_used_again_after_a_resume(folder: Path) -> None:
    """Each process continues with the counts in the file of the chief, also one that had begun more episodes."""
    for mode in ("train", "rollouts", "sequences", "follow"):
        for fit in recorded(folder, mode)[0]["fits"]:
            assert 2 * fit["begun"] > max(fit["numbers"]), mode


def test_noise_anneals_by_the_steps_of_all_ranks(folder: Path) -> None:
    assert [run["sigma"] for run in recorded(folder, "anneal")] == pytest.approx([0.5, 0.5])


def test_each_rank_keeps_the_states_of_its_own_episodes(folder: Path) -> None:
    for rank in recorded(folder, "count"):
        assert rank["faults"] == [] and rank["stored"] >= 40


@pytest.mark.parametrize("number", [0, 1], ids=["PPO", "DQN"])
def test_ranks_learn_together_with_a_memory_and_masks(folder: Path, number: int) -> None:
    chief, other = (each["fits"][number] for each in recorded(folder, "remember"))
    for name in ("weights", "updates", "steps", "episodes"):
        assert chief[name] == other[name], name
    assert chief["updates"] > 3 and chief["steps"] == 160


def test_callbacks_and_files_run_on_the_chief(trained: tuple[Path, list[dict]]) -> None:
    folder, (chief, other) = trained
    assert chief["ended"] and not other["ended"] and not other["began"]
    assert list((folder / "files-0").iterdir()) and not (folder / "files-1").exists()


def test_file_of_the_chief_continues_on_one_process(trained: tuple[Path, list[dict]]) -> None:
    folder, (chief, _) = trained
    agent = noterl.load(folder / "chief.noterl")
    assert (agent.steps, agent.updates) == (chief["fits"][1]["steps"], chief["fits"][1]["updates"])
    before = agent.updates
    agent.fit(steps=32, verbose=0)
    assert agent.updates == before + 8


def test_a_stop_takes_effect_before_the_same_update(folder: Path) -> None:
    chief, other = (each["fits"][0] for each in recorded(folder, "stop"))
    assert chief["reason"] == other["reason"] == "rank 1 is content"
    assert chief["updates"] == other["updates"] == 24 and chief["weights"] == other["weights"]


def test_rollouts_that_begin_at_different_steps_are_learned_together(folder: Path) -> None:
    chief, other = (each["fits"] for each in recorded(folder, "rollouts"))
    for own, others in zip(chief, other, strict=True):
        assert [own[name] for name in ("weights", "updates", "steps")] == [
            others[name] for name in ("weights", "updates", "steps")
        ]
    assert [each["steps"] for each in chief] == [1101, 2102]
    # Two updates on each rollout: the first one needs 28 + 128 more steps, each further one 2 * 128.
    assert [each["updates"] for each in chief] == [2 * (1 + 845 // 256), 2 * (1 + (845 + 1001) // 256)]


def test_ranks_end_together_at_a_loss_that_is_not_finite(folder: Path) -> None:
    chief, other = (each["fits"][0] for each in recorded(folder, "diverge"))
    assert "is not finite" in chief["reason"] and chief["steps"] == other["steps"] < 400
    assert chief["weights"] == other["weights"]


def test_ranks_make_the_same_random_number_of_updates_on_sequences(folder: Path) -> None:
    chief, other = (each["fits"][0] for each in recorded(folder, "sequences"))
    assert chief["updates"] == other["updates"] > 16  # one for each rollout
    assert chief["weights"] == other["weights"]


def test_ranks_follow_what_the_chief_changes_between_updates(folder: Path) -> None:
    chief, other = (each["fits"][0] for each in recorded(folder, "follow"))
    for name in ("weights", "updates", "steps", "learning_rate"):
        assert chief[name] == other[name], name
    assert chief["updates"] > 4 * (400 - 64) // 16 and chief["learning_rate"] < 0.01 / 50


@pytest.mark.parametrize(
    ("mode", "message", "code"),
    [
        ("kill", r"lost the connection to another process", 137),
        ("raise", r"KeyError: 'the callback of the chief'", 1),
    ],
)
def test_faults_end_the_run_everywhere(mode: str, message: str, code: int, tmp_path: Path) -> None:
    found, output = launch(RANK_RUN, mode, tmp_path)
    assert found == code and re.search(message, output), output
    assert "launch: rank" in output and not list(tmp_path.glob("*.json"))


def test_backup_continues_the_run_of_a_killed_rank(tmp_path: Path) -> None:
    assert launch(RANK_RUN, "kill", tmp_path)[0] == 137
    code, output = launch(RANK_RUN, "resume", tmp_path)
    assert code == 0, output
    chief, other = recorded(tmp_path, "resume")
    assert 0 < chief["first_step"] < 301
    for name in ("weights", "updates", "steps"):
        assert chief["fits"][0][name] == other["fits"][0][name]
    assert chief["fits"][0]["steps"] == 301


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        code, output = launch(RANK_RUN, "train", tmp_path, options=("--port", str(port)))
        assert code == 2 and f"--port {port}" in output


def test_a_server_of_another_program_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from noterl.backends.process_group import ConnectionLost
    from noterl.backends.torch import replicas

    monkeypatch.setattr(replicas, "CONNECT_SECONDS", 2)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        import torch

        for rank in (0, 1):
            with pytest.raises(ConnectionLost, match="MASTER_PORT"):
                replicas.Processes(rank, 2).connect(torch.device("cpu"))


def test_two_ranks_make_the_updates_of_one_device() -> None:
    code, output = launch(EQUIVALENCE, "ddp", 40)
    assert code == 0, output
    # On torch, Keras computes some functions of float64 in float32, such as `ops.maximum` of a scalar.
    assert_equivalent(output, float64=1e-6)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # JAX, if a test before imported it
def test_output_names_the_rank() -> None:
    from noterl.cli.launch import Launch

    output = io.StringIO()
    command = [sys.executable, "-c", "import os, sys; print(os.environ['RANK']); sys.exit(int(os.environ['RANK']))"]
    code = Launch(["rank 0", "rank 1"], [{"RANK": "0"}, {"RANK": "1"}], command, output).run()
    assert code == 1 and sorted(output.getvalue().splitlines()) == ["[rank 0] 0", "[rank 1] 1"]
