"""`noterl play`, `evaluate`, `info` and `compare`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import noterl
from noterl import saving
from noterl.cli import main
from noterl.cli.compare import groups_of
from noterl.cli.environment import environment_of
from tests.support.doubles import CountingEnv

pytestmark = [pytest.mark.backends("torch"), pytest.mark.filterwarnings("ignore:fit ended without a gradient update")]

ENV = "CartPole-v1(sutton_barto_reward=True)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run in an environment with an argument."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    options = ["--hidden", "8", "--steps", "60"]
    arguments = ["train", "dqn", "--env", ENV, *options, "--seed", "1", "--out", str(folder), "--quiet"]
    assert main(arguments) == 0
    return folder


def test_evaluate_prints_the_statistics(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--episodes", "3", "--seed", "5", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["returns"]) == 3 and result["reward_mean"] == pytest.approx(sum(result["returns"]) / 3)
    assert main(["evaluate", str(run / "agent.noterl"), "--episodes", "3", "--seed", "5"]) == 0
    assert f"{result['reward_mean']:.4g}" in capsys.readouterr().out


def test_weights_are_evaluated(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = noterl.load(run / "agent.noterl")
    agent.set_weights({name: -value for name, value in agent.get_weights().items()})
    path = str(tmp_path / "weights.safetensors")
    agent.save_weights(path)
    expected = agent.evaluate(environment_of(ENV), episodes=2, seed=5)["returns"].tolist()
    named = ["dqn", "--env", ENV, "--hidden", "8", "--backend", "torch"]
    for arguments in ([str(run)], named):
        assert main(["evaluate", *arguments, "--weights", path, "--episodes", "2", "--seed", "5", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["returns"] == expected
    assert main(["play", *named, "--weights", path, "--max-steps", "2", "--frame-dir", str(tmp_path / "frames")]) == 0
    assert main(["evaluate", "dqn", "--env", "CartPole-v1", "--weights", path]) == 2
    assert "weights" in capsys.readouterr().err
    assert main(["play", "dqn", "--env", "CartPole-v1"]) == 2
    assert "add --env and --weights" in capsys.readouterr().err


def test_publish_writes_a_folder(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "out")
    options = ["--episodes", "2", "--license", "mit", "--no-video"]
    assert main(["publish", str(run), folder, *options]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"\n      type: {json.dumps(ENV)}\n" in card and (run / "run.toml").read_text() in card
    assert (tmp_path / "out" / "curve.png").exists()
    assert main(["evaluate", folder, "--episodes", "1", "--quiet"]) == 0
    for arguments in ([], [str(run)], [str(run), *options]):
        assert main(["publish", *arguments]) == 2
        assert "a new folder must follow" in capsys.readouterr().err
    assert main(["publish", str(run), "--help"]) == 0 and "--license" in capsys.readouterr().out
    assert main(["publish", str(run), str(run), "--episodes", "1"]) == 2
    assert "folder must be" in capsys.readouterr().err


def test_files_beside_a_downloaded_file_are_not_used(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(repository: str, name: str, revision: str | None, dry_run: bool = False) -> object:
        assert (repository, revision) == ("owner/pole", "v1")
        return SimpleNamespace(file_size=1) if dry_run else str(run / name)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    monkeypatch.setattr("noterl.cli.config.read_config", lambda path: pytest.fail(f"{path} was read"))
    address = "hub:owner/pole@v1"
    assert main(["info", address]) == 0
    assert main(["evaluate", address, "--episodes", "1"]) == 0
    assert main(["publish", address, str(tmp_path / "out"), "--episodes", "1", "--no-video"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "agent.noterl"]


def test_play_writes_video_and_frames(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pygame")
    video, frames = tmp_path / "a.gif", tmp_path / "frames"
    options = ["--video", str(video), "--frame-dir", str(frames), "--frame-frequency", "2", "--max-steps", "3"]
    assert main(["play", str(run), *options, "--overlay", "--no-deterministic", "--quiet"]) == 0
    assert video.exists() and sorted(path.name for path in frames.iterdir()) == ["00000.jpg", "00002.jpg"]
    assert capsys.readouterr().out == ""


def test_pygame_draws_into_memory_without_a_display(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("noterl.training.play.sys.platform", "linux")
    assert main(["play", str(run), "--video", str(tmp_path / "a.gif"), "--max-steps", "2", "--quiet"]) == 0
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"


def test_play_without_a_display_says_what_to_do(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("noterl.training.play.sys.platform", "linux")
    assert main(["play", str(run), "--render"]) == 2
    assert "video=" in capsys.readouterr().err
    assert main(["play", str(run), "--render", "human"]) == 2


def test_info_describes_the_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["agent"], found["steps"], found["memory"]) == ("DQN", "60", "not stored")
    assert found["network q"] == f"{4 * 8 + 8 + 8 * 2 + 2:,} values" and "hidden=(8,)" in found["arguments"]
    assert main(["info", str(run), "--no-json"]) == 0
    assert not capsys.readouterr().out.startswith("{")
    assert main(["info", str(run)]) == 0
    assert "DQN" in capsys.readouterr().out


def test_info_refuses_a_file_with_other_types(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = saving.read(run / "agent.noterl")
    document["state"]["counters"]["steps"] = "many"
    saving.write(tmp_path / "agent.noterl", document)
    assert main(["info", str(tmp_path / "agent.noterl")]) == 1
    assert "does not hold an agent of noterl" in capsys.readouterr().err


def test_info_describes_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = noterl.DQN(lambda: CountingEnv(3), hidden=(4,), seed=1)
    agent.save_weights(tmp_path / "a.safetensors")
    assert main(["info", str(tmp_path / "a.safetensors")]) == 0
    assert "float32 [2, 4]" in capsys.readouterr().out


def test_info_escapes_what_controls_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saving.write_weights(tmp_path / "a.safetensors", {"\x1b[2J\x1b[31mname\r": np.zeros(2, np.float32)})
    assert main(["info", str(tmp_path / "a.safetensors")]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "\r" not in printed
    assert "\\x1b[31mname" in printed


def test_errors_escape_what_controls_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text("\x1b[31mname,steps\n1,2\n")
    assert main(["compare", str(tmp_path / "log.csv")]) == 2
    printed = capsys.readouterr().err
    assert "\x1b" not in printed and "\\x1b[31mname" in printed
    assert printed.count("\n") == 1


def test_damaged_file_gives_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.noterl").write_bytes(b"nothing")
    for command in ("info", "evaluate", "play"):
        assert main([command, str(tmp_path)]) == 1
        assert "a.noterl" in capsys.readouterr().err


def test_unknown_option_suggests_the_nearest(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--episode", "3"]) == 2
    assert "--episodes" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--episodes", "0"]) == 2


def test_help_needs_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    for command, option in (("play", "--frame-delay"), ("evaluate", "--num-envs"), ("info", "--json")):
        assert main([command, "--help"]) == 0
        assert option in capsys.readouterr().out


def test_compare_draws_a_curve_for_each_argument(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a-1", "a-2", "b-1"):
        (tmp_path / name).mkdir()
        rows = "".join(f"{step},{step * len(name)}\n" for step in range(0, 50, 10))
        (tmp_path / name / "log.csv").write_text("steps,reward\n" + rows)
    out = tmp_path / "curve.png"
    arguments = [str(tmp_path / "a-*" / "log.csv"), str(tmp_path / "b-1"), "--out", str(out), "--window", "2"]
    assert main(["compare", *arguments]) == 0
    text = capsys.readouterr().out
    assert out.exists() and "a-*" in text and "b-1" in text and "reward 105 at 40" in text
    for arguments in (["nowhere.csv"], [str(tmp_path)], [], [str(tmp_path / "b-1"), "--what", "loss"]):
        assert main(["compare", *arguments]) == 2


def test_compare_keeps_logs_whose_names_are_equal(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "a.csv", tmp_path / "a" / "log.csv"]
    paths[0].mkdir()
    for path in paths[1:]:
        path.write_text("steps,reward\n0,1\n")
    assert list(groups_of(list(map(str, paths[:2])))) == [str(tmp_path / "a"), str(tmp_path / "a.csv")]
    for second in (paths[0], paths[2]):  # the folder, and its log
        curves = groups_of([str(paths[1]), str(second)])
        assert list(curves) == [str(tmp_path / "a"), str(tmp_path / "a" / "log.csv")]


def test_wrappers_in_a_run_file_give_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noterl.DQN("CartPole-v1", hidden=(4,)).save(tmp_path / "agent.noterl")
    (tmp_path / "run.toml").write_text('agent = "dqn"\nenv = "CartPole-v1"\nwrap = ["FlattenObservation()"]\n')
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "wrap is not supported" in capsys.readouterr().err


def test_message_of_sys_exit_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.modules["noterl.cli.main"], "_main", lambda _: sys.exit("the licence has expired"))
    assert main(["info"]) == 1
    assert capsys.readouterr().err == "noterl: error: the licence has expired\n"


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["callbacks", "early-stoping"], "'early-stopping'"),
        (["play"], "noterl play"),
        (["play", "nowhere.noterl"], "nowhere"),
    ],
)
def test_wrong_name_gives_code_2(arguments: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("noterl: error: ") and suggestion in captured.err and captured.out == ""
