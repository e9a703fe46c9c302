"""Markdown tables of the results in benchmarks/results/; `python -m benchmarks.report` prints them.

The documentation imports this module where neither noterl nor a framework is installed. It needs the standard library
alone.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import scaling_model, stats
from benchmarks.tasks import TASKS, Learning, Task

RESULTS = Path(__file__).resolve().parent / "results"
NO_RESULTS = "No results are recorded yet."
# The tasks of the README's table of learning: each algorithm and each kind of task. A task of `memory_tasks.py`
# and a row of `offline.py` follow.
README_TASKS = (
    *("cartpole-ppo", "cartpole-a2c", "lunarlander-ppo", "pendulum-ppo", "pendulum-ddpg", "pendulum-td3"),
    *("pendulum-sac", "pendulum-tqc", "pendulum-crossq", "bipedalwalker-sac", "halfcheetah-td3", "fetchreach-sac"),
    *("cartpole-pqn", "cartpole-rainbow"),
)
README_MEMORY = "memory-cartpole-ppo"
README_OFFLINE = "IQL:hopper-medium"
# The parts of `pool.py`, in the order of the documentation.
POOL_PARTS = {
    "scaling": "Collecting with two workers and with one",
    "async": "Collecting with two workers and with two processes of gymnasium's AsyncVectorEnv",
    "sb3": "Collecting with two workers and with two processes of Stable-Baselines3's SubprocVecEnv",
    "sleep": "Environments that wait",
    "overlap": "Overlap",
    "ppo": "PPO with workers",
    "returns": "TD3 on Pendulum-v1 with overlap and without, 20,000 steps",
    "start": "Start and memory",
    "ring": "Transitions through shared memory",
    "weights": "Weights through shared memory",
}
# What is on an algorithm's page beside the table of its tasks.
OTHER_RESULTS = {
    "dqn": ("compare/cartpole-dqn", "learning/bitflip"),
    "maddpg": ("learning/maddpg_speaker_listener", "learning/maddpg_spread"),
}
NAMES = {
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "torch": "PyTorch",
    "torch-inductor": "PyTorch (inductor)",
    "tensorflow-warm": "TensorFlow (warm cache)",
    "jax-warm": "JAX (warm cache)",
}


def speed_tables(results: Path = RESULTS) -> str:
    """Return all comparisons of speed: a section for each task of `compare.py`, and one for the replay memory."""
    sections = [f"### {result['task']}\n\n{speed_section(result)}" for result in _results(results / "compare")]
    path = results / "replay" / "replay.json"
    if path.exists():
        result = json.loads(path.read_text())
        head = f"### Replay memory\n\n{result['pairs']} pairs, times in microseconds, {_where(result)}"
        sections.append(f"{head}\n\n{replay_table(result)}")
    path = results / "atari" / "atari.json"
    if path.exists():
        result = json.loads(path.read_text())
        sections.append(f"### Atari Pong\n\nMilliseconds per update, {_where(result)}\n\n{atari_table(result)}")
    path = results / "solve" / "solve.json"
    if path.exists():
        result = json.loads(path.read_text())
        head = "### Whole programs until CartPole is solved"
        sections.append(f"{head}\n\nSeconds of the process, {_where(result)}\n\n{solve_table(result)}")
    return _joined(sections)


def learning_tables(results: Path = RESULTS) -> str:
    """Return all results of learning: a table of the tasks of `tasks.py`, and a section for each module's task."""
    stored = _results(results / "learning")
    sections = [learning_table(stored)] if stored else []
    for path in sorted((results / "learning").glob("*.json")):
        result = json.loads(path.read_text())
        if "table" in result:
            about = f"{result['seeds']} seeds, {result['backend']}, {_where(result)}"
            sections.append("\n".join([f"### {result['task']}\n\n{about}\n", *result["table"]]))
    return _joined(sections)


# The algorithms of a page that has several, as a regular expression.
ALGORITHMS = {"distributional": "c51|iqn|qrdqn|rainbow"}


def algorithm_tables(page: str, results: Path = RESULTS) -> str:
    """Return the tables of what the algorithms of a page learned in float32 with their usual networks."""
    names = re.compile(rf"[a-z0-9]+-({ALGORITHMS.get(page, page)})(-[a-z]+)*")
    stored = [result for result in _results(results / "learning") if names.fullmatch(result["task"])]
    sections = [learning_table(stored)] if stored else []
    for name in OTHER_RESULTS.get(page, ()):
        result = json.loads((results / f"{name}.json").read_text())
        table = "\n".join(result["table"]) if "table" in result else returns_table(result)
        sections.append(f"{_title(result)}\n\n{table}")
    return _joined(sections)


def memory_tables(results: Path = RESULTS) -> str:
    """Return the tables of what agents with a memory learned, and the same agents without one."""
    stored = [json.loads(path.read_text()) for path in sorted((results / "learning").glob("memory-*.json"))]
    sections = ["{}\n\n{}".format(_title(result), "\n".join(result["table"])) for result in stored]
    speeds = [json.loads(path.read_text()) for path in sorted((results / "memory_speed").glob("*.json"))]
    return _joined(sections + ([memory_speed_table(speeds)] if speeds else []))


def memory_speed_table(results: Sequence[dict[str, Any]]) -> str:
    """Return the steps per second of recurrent PPO as a ratio to RecurrentPPO of Stable-Baselines3 Contrib."""
    rows = []
    for result in results:
        ratios = map(ratio, result["ratios"].values())
        rows.append((result["task"], NAMES[result["backend"]], str(len(result["runs"])), *ratios))
    title = "**Steps per second of PPO beside contrib's RecurrentPPO, with an LSTM of 64**"
    return f"{title}\n\n" + markdown_table(("task", "backend", "pairs", *results[0]["ratios"]), rows)


def pong_tables(results: Path = RESULTS) -> str:
    """Return the table of the agents that were trained on Pong with the settings of xagents."""
    stored = [json.loads(path.read_text()) for path in sorted((results / "pong").glob("*.json"))]
    return _joined([pong_table(stored)] if stored else [])


def pong_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each run of `pong.py` that reached the goal."""
    rows = []
    for result in results:
        for run in result["runs"]:
            numbers = [f"{run['mean_return']:.1f}", f"{run['curve']['steps'][-1]:,}", f"{run['hours']:.1f}"]
            final = f"{statistics.mean(run['evaluation']):.1f}"
            rows.append((result["task"], NAMES[result["backend"]], *numbers, final, result["published"]))
    head = ("task", "backend", "mean of 100 games", "steps", "hours", "20 greedy games", "xagents' own run")
    return markdown_table(head, rows)


def offline_tables(results: Path = RESULTS) -> str:
    """Return the table of what agents learned from data sets."""
    return _table_of(results / "offline" / "offline.json", offline_table)


def offline_table(result: dict[str, Any]) -> str:
    """Return a result of `offline.py` as Markdown: each row is an agent on a data set."""
    head = ("agent", "set", "the set's mean return", "median", "worst", "worst score", "met")
    rows = []
    for line in result["summary"]:
        score = "" if line["worst score"] is None else f"{line['worst score']:.2f}"
        numbers = [f"{line[name]:,.0f}" for name in ("data", "median", "worst")]
        rows.append((*line["row"].split(":"), *numbers, score, f"{line['met']} of {line['seeds']}"))
    return markdown_table(head, rows)


def offline_speed_tables(results: Path = RESULTS) -> str:
    """Return the updates per second of offline agents beside d3rlpy."""
    stored = [json.loads(path.read_text()) for path in sorted((results / "offline_speed").glob("*.json"))]
    return _joined([offline_speed_table(stored)] if stored else [])


def offline_speed_table(results: Iterable[dict[str, Any]]) -> str:
    """Return results of `offline_speed.py` as Markdown: medians of the runs, and the ratio over pairs."""
    rows = []
    for result in results:
        runs = result["runs"]
        medians = [f"{statistics.median(run[who] for run in runs):,.0f}" for who in ("noterl", "d3rlpy")]
        rows.append((result["agent"], NAMES[result["backend"]], str(len(runs)), *medians, ratio(result["ratio"])))
    return markdown_table(("agent", "backend", "pairs", "noterl", "d3rlpy", "ratio"), rows)


def offline_online_tables(results: Path = RESULTS) -> str:
    """Return the table of training in an environment with data beside it, or after offline training."""
    return _table_of(results / "offline" / "offline_online.json", offline_online_table)


def offline_online_table(result: dict[str, Any]) -> str:
    """Return a result of `offline_online.py` as Markdown: each row is an agent in an environment."""
    head = ("agent", "environment", "steps", "seeds", "median", "worst", "beside SAC, or its own offline score")
    rows = []
    for line in result["summary"]:
        words = []
        for when in ("during training", "at the end"):
            found = line.get(when)
            if found is not None and found["low"] is not None:
                interval = f"{found['difference']:+,.0f} ({found['low']:+,.0f} to {found['high']:+,.0f})"
                words.append(f"{when} {found['outcome']}: {interval}")
        if "offline score" in line:
            scores = line["offline score"], line["lowest score"]
            words.append("score {:.2f} offline, {:.2f} at the lowest point online".format(*scores))
        numbers = [f"{line[name]:,.0f}" for name in ("steps", "seeds", "median", "worst")]
        rows.append((*line["row"].split(":"), *numbers, "; ".join(words)))
    return markdown_table(head, rows)


def time_to_score_tables(results: Path = RESULTS) -> str:
    """Return a table of each task of `time_to_score.py`."""
    stored = [json.loads(path.read_text()) for path in sorted((results / "time_to_score").glob("*.json"))]
    return _joined([time_to_score_table(result) for result in stored])


def _title(result: dict[str, Any]) -> str:
    """Return what was measured: the task, the steps, the seeds, the backend of a module's task, and where."""
    seeds = len({run["seed"] for run in result["runs"]})
    steps = result["steps"] if "steps" in result else result["settings"]["steps"]
    backend = f", {NAMES[result['backend']]}" if "backend" in result else ""
    title = result.get("title", result["task"])
    return f"**{title}**: {steps:,} steps, {seeds} seeds{backend}, {_where(result)}"


def first_programs_tables(results: Path = RESULTS) -> str:
    """Return the table of what agents with all defaults reach."""
    stored = [json.loads(path.read_text()) for path in sorted((results / "first_programs").glob("*.json"))]
    return _joined([first_programs_table(stored)] if stored else [])


def adapting_defaults_tables(results: Path = RESULTS) -> str:
    """Return the table of what the callbacks of the effective sample size change."""
    stored = [json.loads(path.read_text()) for path in sorted((results / "adapting_defaults").glob("*.json"))]
    return _joined([adapting_defaults_table(stored)] if stored else [])


def learning_rates_tables(results: Path = RESULTS) -> str:
    """Return the table of what agents reach with the learning rates that `LRFinder` suggests."""
    stored = [json.loads(path.read_text()) for path in sorted((results / "learning_rates").glob("*.json"))]
    return _joined([learning_rates_table(stored)] if stored else [])


def start_tables(results: Path = RESULTS) -> str:
    """Return the table of how long programs take to start."""
    stored = [json.loads(path.read_text()) for path in sorted((results / "start").glob("*.json"))]
    sections = [f"{_where(stored[0])}\n\n{start_table(stored)}"] if stored else []
    loads = [json.loads(path.read_text()) for path in sorted((results / "start" / "load").glob("*.json"))]
    if loads:
        about = "A saved agent of 50,000 transitions is loaded and chooses an action"
        sections.append(f"{about}, {_where(loads[0])}\n\n{load_table(loads)}")
    wholes = [json.loads(path.read_text()) for path in sorted((results / "start" / "whole").glob("*.json"))]
    if wholes:
        about = "Whole processes that train PPO for four updates, beside those of an older commit"
        sections.append(f"{about}, {_where(wholes[0])}\n\n{whole_table(wholes)}")
    return _joined(sections)


def pool_tables(results: Path = RESULTS) -> str:
    """Return a table for each part of `pool.py`."""
    sections = []
    for part, title in POOL_PARTS.items():
        path = results / "pool" / f"{part}.json"
        if path.exists():
            result = json.loads(path.read_text())
            sections.append(f"**{title}** ({result['pairs']} pairs, {_where(result)})\n\n{pool_table(result)}")
    return _joined(sections)


def limit_tables(results: Path = RESULTS) -> str:
    """Return the updates beside bare programs: a section for each backend."""
    sections = []
    for path in sorted((results / "limit").glob("*.json")):
        result = json.loads(path.read_text())
        sections.append(f"### {NAMES[result['backend']]}\n\n{_where(result)}\n\n{limit_table(result)}")
    return _joined(sections)


def threads_tables(results: Path = RESULTS) -> str:
    """Return the times of updates with several numbers of threads: a section for each backend."""
    sections = []
    for path in sorted((results / "threads").glob("*.json")):
        result = json.loads(path.read_text())
        sections.append(f"### {NAMES[result['backend']]}\n\n{_where(result)}\n\n{threads_table(result)}")
    return _joined(sections)


def precision_tables(results: Path = RESULTS) -> str:
    """Return updates in bfloat16 beside float32: a section for each backend."""
    sections = []
    for path in sorted((results / "precision").glob("*.json")):
        result = json.loads(path.read_text())
        sections.append(f"### {NAMES[result['backend']]}\n\n{_where(result)}\n\n{precision_table(result)}")
    return _joined(sections)


def distribute_tables(results: Path = RESULTS) -> str:
    """Return a table for each part of `distribute.py` but the model."""
    sections = []
    for part, (title, table) in DISTRIBUTE_PARTS.items():
        stored = _strategies(results, part)
        if stored:
            sections.append(f"**{title}** ({_where(stored[0])})\n\n{table(stored)}")
    return _joined(sections)


def scaling_model_tables(results: Path = RESULTS) -> str:
    """Return the constants of the model of several processes, and its speeds beside the measured ones."""
    stored = _strategies(results, "model")
    return _joined([f"{_where(stored[0])}\n\n{model_constants(stored)}\n\n{model_table(stored)}"] if stored else [])


# The tables of the documentation, in their order there.
TABLES = (
    speed_tables,
    limit_tables,
    threads_tables,
    precision_tables,
    start_tables,
    pool_tables,
    time_to_score_tables,
    learning_tables,
    first_programs_tables,
    adapting_defaults_tables,
    learning_rates_tables,
    pong_tables,
    memory_tables,
    offline_tables,
    offline_speed_tables,
    offline_online_tables,
    distribute_tables,
    scaling_model_tables,
)


def readme_tables(results: Path = RESULTS) -> str:
    """Return the short tables of the README: the fastest backend beside its peers, and what agents learned."""
    tables = [short_speed_table(_results(results / "compare")), short_learning_table(results)]
    return _joined([table for table in tables if table])


def _results(folder: Path) -> list[dict[str, Any]]:
    """Return the results of tasks of `tasks.py` in their order."""
    paths = [folder / f"{name}.json" for name in TASKS]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def _table_of(path: Path, table: Callable[[dict[str, Any]], str]) -> str:
    """Return the table of a stored result, or that there is none."""
    return _joined([table(json.loads(path.read_text()))] if path.exists() else [])


def _joined(sections: Sequence[str]) -> str:
    return "\n\n".join(sections or [NO_RESULTS]) + "\n"


def _where(result: dict[str, Any]) -> str:
    return f"{result['date']}, {result['machine']['processor']}, {result['machine']['cores']} cores"


# Speed


def speed_section(result: dict[str, Any]) -> str:
    """Return the tables of one result of `compare.py`."""
    summary = result["summary"]
    seeds = len({run["seed"] for run in result["runs"]})
    parts = [
        f"{result['task']}: {result['steps']:,} steps, {seeds} seed{'s' * (seeds != 1)}, {_where(result)}",
        markdown_table(
            ("", "steps/s", "after 10 %", "updates", "return: median", "IQM (95 % interval)", "worst seed"),
            [_participant_row(who, one) for who, one in summary["participants"].items()],
        ),
    ]
    if summary["comparisons"]:
        head = ("", "ratio of steps/s", "bar", "ratio after 10 %", "difference of return", "outcome")
        parts.append(markdown_table(head, [_comparison_row(one) for one in summary["comparisons"]]))
    splits = {who: one["time_split"] for who, one in summary["participants"].items() if "time_split" in one}
    if splits:
        names = list(next(iter(splits.values())))
        rows = [(who, *(f"{100 * split[name]:.0f} %" for name in names)) for who, split in splits.items()]
        parts.append(markdown_table(("share of the time", *names), rows))
    return "\n\n".join(parts)


def returns_table(result: dict[str, Any]) -> str:
    """Return the returns of one result of `compare.py`, noterl first; a warm cache does not change the returns."""
    participants = result["summary"]["participants"]
    rows = []
    for who in sorted(participants, key=lambda who: (not who.startswith("noterl-"), who)):
        if not who.endswith("-warm"):
            one = participants[who]["returns"]
            scores = ", ".join(f"{score:.0f}" for score in one["scores"])
            rows.append((who, f"{one['median']:.1f}", iqm(one), f"{one['worst']:.1f}", scores))
    return markdown_table(("", "median", "IQM (95 % interval)", "worst seed", "by seed"), rows)


def _participant_row(who: str, one: dict[str, Any]) -> tuple[str, ...]:
    returns = one["returns"]
    speeds = (f"{one[key]:,.0f}" if one[key] else "" for key in ("steps_per_second", "steady_steps_per_second"))
    median, worst = (f"{returns[key]:.1f}" for key in ("median", "worst"))
    return (who, *speeds, f"{one['updates']:,}", median, iqm(returns), worst)


def _comparison_row(one: dict[str, Any]) -> tuple[str, ...]:
    verdict = {True: "met", False: "missed", None: "too few pairs"}[one["met"]]
    return (
        f"{one['ours']} / {one['peer']}",
        ratio(one["speed"]),
        f"{one['bar']:g}: {verdict}" if one["bar"] is not None else "",
        ratio(one["steady_speed"]),
        difference(one["returns"]),
        one["returns"]["outcome"],
    )


def short_speed_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row per task: the fastest backend of noterl, and its ratios to each peer."""
    peers = {"sb3": "SB3", "sbx": "SBX"}
    head = ["task", "fastest backend", "steps/s", *(f"times {name}" for name in peers.values())]
    head += [f"times {name}, after 10 %" for name in peers.values()]
    rows = []
    for result in results:
        summary = result["summary"]
        speeds = {who: one["steps_per_second"] for who, one in summary["participants"].items() if who[:7] == "noterl-"}
        if not speeds:
            continue
        best = max(speeds, key=speeds.__getitem__)
        found = {one["peer"]: one for one in summary["comparisons"] if one["ours"] == best}
        cells = [result["task"], NAMES[best.removeprefix("noterl-")], f"{speeds[best]:,.0f}"]
        for key in ("speed", "steady_speed"):
            cells += [ratio(found[peer][key]) if peer in found else "" for peer in peers]
        rows.append(tuple(cells))
    return markdown_table(tuple(head), rows) if rows else ""


def replay_table(result: dict[str, Any]) -> str:
    """Return the rows of a result of `replay.py`."""
    rows = []
    for row in result["runs"]:
        verdict = {True: "met", False: "missed", None: "too few pairs"}[row["met"]]
        bar = "" if row["bar"] is None else f"{row['bar']:.3g}"
        theirs = "" if row["theirs"] is None else f"{row['theirs']:.1f}"
        rows.append((row["name"], f"{row['ours']:.1f}", theirs, ratio(row["ratio"]), bar, verdict if bar else ""))
    return markdown_table(("", "noterl", "compared with", "ratio", "bar", ""), rows)


def pool_table(result: dict[str, Any]) -> str:
    """Return the rows of a result of `pool.py`: rates of both sides, or single values."""
    verdicts = {True: "met", False: "missed", None: "too few pairs"}
    if "value" in result["runs"][0]:
        rows = [(row["name"], _value(row["value"]), *_bar(row, verdicts)) for row in result["runs"]]
        return markdown_table(("", "measured", "bar"), rows)
    details = {"c": "c (ms)", "u": "u (ms)", "s": "s", "speedup": "speed-up", "bound": "bound"}
    shown = [name for name in details if name in result["runs"][0]]
    rows = []
    for row in result["runs"]:
        values = [f"{1000 * row[name]:.3f}" if name in ("c", "u") else f"{row[name]:.2f}" for name in shown]
        cells = (row["name"], f"{row['ours']:,.0f}", f"{row['theirs']:,.0f}", *values)
        rows.append((*cells, ratio(row["ratio"]), *_bar(row, verdicts)))
    head = ("", "steps/s", "compared with", *(details[name] for name in shown), "ratio", "bar")
    return markdown_table(head, rows)


def _value(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bar(row: dict[str, Any], verdicts: dict[bool | None, str]) -> tuple[str]:
    return ("" if row["bar"] is None else f"{row['bar']:,g}: {verdicts[row['met']]}",)


def atari_table(result: dict[str, Any]) -> str:
    """Return the rows of a result of `atari.py`."""
    return _pairs_table(result["summary"], "ms")


def solve_table(result: dict[str, Any]) -> str:
    """Return the rows of a result of `solve.py`, and how many runs have solved the task."""
    solved = ", ".join(f"{who} {count}" for who, count in result["summary"]["solved"].items())
    return f"{_pairs_table(result['summary']['rows'], 's')}\n\nSolved: {solved}."


def time_to_score_table(result: dict[str, Any]) -> str:
    """Return the table of a result of `time_to_score.py`: a row for each participant, then the ratios."""
    head = ("participant", "median, s", "steps", "held the score", "reached it at the end", "memory, MB")
    rows = []
    for who, line in result["summary"]["participants"].items():
        counts = [f"{line[name]} of {line['runs']}" for name in ("held", "final")]
        rows.append((who, f"{line['seconds']:.1f}", f"{line['steps']:,.0f}", *counts, f"{line['memory_mb']:,.0f}"))
    title = f"**{result['task']}, {result['score']:g}**, {_where(result)}"
    return f"{title}\n\n{markdown_table(head, rows)}\n\n{_pairs_table(result['summary']['rows'], 's')}"


def _pairs_table(summary: Iterable[dict[str, Any]], unit: str) -> str:
    """Return a row for each pair of participants."""
    rows = []
    for row in summary:
        cells = (f"{row['ours']:.1f}", f"{row['theirs']:.1f}", ratio(row["ratio"]))
        verdict = {True: "met", False: "missed", None: "too few pairs"}[row["met"]]
        rows.append((row["name"], *cells, "" if row["bar"] is None else f"{row['bar']:g}: {verdict}"))
    return markdown_table(("participants", f"first, {unit}", f"second, {unit}", "ratio", "bar"), rows)


def limit_table(result: dict[str, Any]) -> str:
    """Return the rows of a result of `limit.py`."""
    rows = []
    for row in result["runs"]:
        verdict = {True: "met", False: "missed", None: "too few pairs"}[row["met"]]
        rate = row["flops"] / row["ours"] / 1e3  # operations per microsecond, as GFLOP/s
        rows.append(
            (
                row["case"],
                row["threads"].get("OMP_NUM_THREADS", "default"),
                f"{row['ours']:,.0f}",
                f"{row['theirs']:,.0f}",
                ratio(row["ratio"]),
                f"{row['bar']:g}: {verdict}",
                f"{rate:,.1f}",
                f"{row['peak']:,.1f}",
                f"{rate / row['peak']:.0%}",
            )
        )
    head = ("update", "threads", "noterl, µs", "bare program, µs", "ratio", "bar")
    return markdown_table((*head, "GFLOP/s", "GFLOP/s of a product", "share"), rows)


def threads_table(result: dict[str, Any]) -> str:
    """Return the rows of a result of `threads.py`: microseconds of an update, alone and beside a busy program."""
    labels = list(result["summary"][0]["alone"])
    rows = []
    for row in result["summary"]:
        cells = [f"{row[kind][label]:,.0f}" for kind in ("alone", "beside") for label in labels]
        verdict = {True: f"{result['bar']:.0%}: met", False: f"{result['bar']:.0%}: missed", None: ""}[row["met"]]
        rows.append((row["case"], *cells, f"{row['kept']:.0%}", verdict))
    head = ("update", *labels, *(f"{label}, beside" for label in labels))
    return markdown_table((*head, "speed kept", "bar"), rows)


def precision_table(result: dict[str, Any]) -> str:
    """Return the rows of a result of `precision.py`."""
    rows = [
        (row["case"], f"{row['bfloat16']:,.0f}", f"{row['float32']:,.0f}", ratio(row["ratio"]))
        for row in result["runs"]
    ]
    return markdown_table(("update", "bfloat16, µs", "float32, µs", "ratio"), rows)


# Learning


def learning_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each participant of each task."""
    rows = []
    for result in results:
        task = TASKS[result["task"]]
        goal = task.learning
        assert goal is not None
        for who, one in result["summary"].items():
            ours = who.startswith("noterl-")
            differences = (_peers(one), _beside(task, who, one)) if ours else ()
            rows.append(
                (
                    result["task"],
                    _budget(goal, result),
                    who,
                    _seeds(goal.seeds, one),
                    f"{one['median']:.1f}",
                    iqm(one),
                    f"{one['worst']:.1f}",
                    _goal(goal, one) if ours else "",
                    "; ".join(filter(None, differences)),
                    goal.published,
                )
            )
    head = (
        "task",
        "steps",
        "",
        "seeds",
        "median",
        "IQM (95 % interval)",
        "worst seed",
        "goal",
        "difference from peers, or from the agent beside",
    )
    return markdown_table((*head, "published"), rows)


def first_programs_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each program of `first_programs.py`."""
    rows = []
    for result in results:
        one = result["summary"]
        verdict = {True: "met", False: "missed", None: "seeds missing"}[one["met"]]
        goal = ""
        if one["goal"] is not None:
            goal = f"{one['goal']:g} in {one['share']:.0%} of the seeds: {verdict} ({one['reached']} of {one['seeds']})"
        cells = [
            f'`{result["algorithm"]}("{result["environment"]}")`',
            f"{result['steps']:,}",
            result["backend"],
            _seeds(one["complete"], one),
        ]
        rows.append((*cells, f"{one['median']:.1f}", iqm(one), f"{one['worst']:.1f}", goal))
    head = ("agent", "steps", "backend", "seeds", "median", "IQM (95 % interval)", "worst seed", "goal")
    return markdown_table(head, rows)


def adapting_defaults_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each task and variant of `adapting_defaults.py`."""
    rows = []
    for result in results:
        for variant, one in result["summary"].items():
            found = one.get("difference")
            compared = "" if found is None else f"{difference(found)}: {found['outcome']}"
            cells = [result["task"], f"{result['steps']:,}", variant, str(one["seeds"]), f"{one['median']:.1f}"]
            rows.append((*cells, iqm(one), f"{one['worst']:.1f}", compared))
    head = ("task", "steps", "callback", "seeds", "median", "IQM (95 % interval)", "worst seed", "difference (95 %)")
    return markdown_table(head, rows)


def learning_rates_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each case and metric of `learning_rates.py`."""
    rows = []
    for result in results:
        for metric, one in result["summary"].items():
            if not one["searches"]:
                continue
            clear = f"{one['clear']} of {one['searches']}"
            between = "" if one["suggestions"] is None else "{:.2g} to {:.2g}".format(*one["suggestions"])
            score = "" if one["score"] is None else f"{one['score']:.1f}"
            share = "" if one["share"] is None else f"{one['share']:.2f}"
            best = f"{one['best']:.1f} at {one['best_rate']:g}"
            verdict = "" if one["met"] is None else "met" if one["met"] else "missed"
            steps = f"{result['steps']:,}"
            rows.append((result["case"], metric, steps, clear, between, score, best, share, verdict))
    head = ("case", "metric", "steps", "clear", "suggestions", "return", "best of the grid", "share", "bar 0.8")
    return markdown_table(head, rows)


def start_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each backend and task of `start.py`, in seconds."""
    rows = []
    for result in results:
        for task, one in result["summary"].items():
            if task.startswith("import"):
                cells = ["", f"{one['seconds']:.2f}", ""]
            else:
                cells = [f"{one[time]:.2f}" if time in one else "" for time in ("cold", "warm", "later")]
            verdict = "met" if one["met"] else "missed"
            rows.append((NAMES[result["backend"]], task, *cells, f"{one['bar']:g}: {verdict}"))
    return markdown_table(("backend", "task", "cold", "warm", "later", "bar"), rows)


def load_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each backend and checkout of `start.py --load`."""
    rows = []
    for result in results:
        for checkout, one in result["summary"].items():
            cells = [f"{one['seconds']:.2f}", *(f"{one[name]:.0f}" for name in ("peak", "allocated", "file"))]
            rows.append((NAMES[result["backend"]], checkout, *cells))
    return markdown_table(("backend", "commit", "seconds", "peak MiB", "replay MiB", "file MiB"), rows)


def whole_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each backend of `start.py --whole`."""
    rows = []
    for result in results:
        one = result["summary"]
        cells = (f"{one['before']:.2f}", f"{one['after']:.2f}", ratio(one), f"{one['bar']:.2f}")
        rows.append((NAMES[result["backend"]], *cells))
    return markdown_table(("backend", "seconds before", "seconds after", "ratio", "bar"), rows)


def equivalence_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each strategy, dtype and algorithm of the part `equivalence`."""
    rows = []
    for result in results:
        for dtype, found in result["differences"].items():
            for name, one in found.items():
                if not name.endswith(" loss"):
                    weights = one["variables"] if isinstance(one, dict) else one
                    rows.append((result["strategy"], dtype, name, f"{weights:.1e}"))
    return markdown_table(("strategy", "dtype", "algorithm", "largest difference of a weight"), rows)


def goal_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each strategy of the part `learning`."""
    rows = []
    for result in results:
        runs = result["runs"]
        steps = ", ".join(f"{run['steps']:,}" if run["reached"] else f"best {run['best']:.0f}" for run in runs)
        rows.append((result["strategy"], f"{sum(run['reached'] for run in runs)} of {len(runs)}", steps))
    return markdown_table(("strategy", "seeds that reached 475", "environment steps"), rows)


def overhead_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each strategy and algorithm of the part `overhead`."""
    verdicts = {True: "met", False: "missed", None: "too few pairs"}
    rows = [
        (result["strategy"], name, ratio(one["ratio"]), f"{one['bar']:g}: {verdicts[one['met']]}")
        for result in results
        for name, one in result["ratios"].items()
    ]
    return markdown_table(("strategy", "algorithm", "time of an update, with one replica / without", "bar"), rows)


def model_constants(results: Iterable[dict[str, Any]]) -> str:
    """Return one row of constants for each strategy of the part `model`."""
    rows = []
    for result in results:
        found = result["constants"]
        micro = (f"{1e6 * found[name]:,.0f}" for name in ("collect", "update", "latency"))
        rows.append((result["strategy"], *micro, f"{found['bandwidth'] / 1e6:,.0f}", f"{found['bytes'] / 1e3:,.0f}"))
    return markdown_table(("strategy", "c (µs)", "u (µs)", "l (µs)", "w (MB/s)", "b (kB)"), rows)


def model_table(results: Iterable[dict[str, Any]]) -> str:
    """Return one row for each measured and each predicted speed of the part `model`."""
    rows = []
    for result in results:
        constants = result["constants"]
        for run in result["runs"]:
            ranks, workers, measured = run["ranks"], run["workers"], statistics.median(run["speeds"])
            cells = (f"{run['units']:,}", str(ranks), str(workers), f"{measured:,.0f}")
            if not run["updates"]:
                rows.append((result["strategy"], *cells, "", "no updates: gives c"))
            elif run["units"] != scaling_model.UNITS:
                rows.append((result["strategy"], *cells, "", "gives l and w"))
            else:
                expected = scaling_model.steps_per_second(ranks, workers, constants)
                kind = "gives u" if ranks * workers == 1 else f"check: {expected / measured - 1:+.0%}"
                rows.append((result["strategy"], *cells, f"{expected:,.0f}", kind))
        for ranks, workers in scaling_model.PREDICTED:
            expected = scaling_model.steps_per_second(ranks, workers, constants)
            cells = (f"{scaling_model.UNITS:,}", str(ranks), str(workers), "", f"{expected:,.0f}", "**prediction**")
            rows.append((result["strategy"], *cells))
    return markdown_table(("strategy", "units", "R", "P", "steps/s, measured", "steps/s, model", ""), rows)


# The parts of `distribute.py` but the model: title and table.
DISTRIBUTE_PARTS = {
    "equivalence": ("Two replicas beside one device: 200 updates in float64, 10 in float32", equivalence_table),
    "learning": ("DQN on CartPole-v1 until the greedy policy reaches 475", goal_table),
    "overhead": ("One replica beside no strategy", overhead_table),
}


def _strategies(results: Path, part: str) -> list[dict[str, Any]]:
    """Return the results of a part of `distribute.py`, by strategy."""
    return [json.loads(path.read_text()) for path in sorted((results / "distribute").glob(f"{part}-*.json"))]


def short_learning_table(results: Path = RESULTS) -> str:
    """Return one row for each task of the README, by its first backend."""
    stored = _results(results / "learning")
    rows = [row for result in stored if result["task"] in README_TASKS and (row := _short_row(result))]
    memory, offline = results / "learning" / f"{README_MEMORY}.json", results / "offline" / "offline.json"
    if memory.exists():
        rows.append(_memory_row(json.loads(memory.read_text())))
    if offline.exists():
        rows.append(_offline_row(json.loads(offline.read_text())))
    head = ("task", "steps", "backend", "seeds", "IQM (95 % interval)", "worst seed", "goal, or difference from SB3")
    return markdown_table((*head, "published"), rows) if rows else ""


def _short_row(result: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the row of a task of `tasks.py`; None if only peers have run."""
    goal, summary = TASKS[result["task"]].learning, result["summary"]
    assert goal is not None
    who = next((f"noterl-{name}" for name in goal.backends if f"noterl-{name}" in summary), None)
    if who is None:
        return None
    one = summary[who]
    backend = NAMES[who.removeprefix("noterl-")]
    outcome = "; ".join(filter(None, (_goal(goal, one), _peers(one))))
    cells = (_budget(goal, result), backend, _seeds(goal.seeds, one), iqm(one), f"{one['worst']:.1f}", outcome)
    return (result["task"], *cells, goal.published)


def _memory_row(result: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of an agent with an LSTM, beside the same agent without a memory."""
    one, without = result["summary"]["lstm"], result["summary"]["without"]
    cells = (f"{result['settings']['steps']:,}", NAMES[result["backend"]], str(result["seeds"]), iqm(one))
    outcome = f"{result['goal']}; without a memory {without['iqm']:.1f}"
    return (result["task"], *cells, f"{one['worst']:.1f}", outcome, "")


def _offline_row(result: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of an agent that learned from a data set."""
    one = next(line for line in result["summary"] if line["row"] == README_OFFLINE)
    run = next(run for run in result["runs"] if run["row"] == README_OFFLINE)
    agent, name = one["row"].split(":")
    cells = (f"{run['updates']:,} updates", NAMES[run["backend"]], str(one["seeds"]), iqm(one))
    outcome = f"above the data's mean return, {one['data']:.1f}, in {one['met']} of {one['seeds']} seeds"
    return (f"{name}-{agent.lower()}", *cells, f"{one['worst']:.1f}", outcome, "")


def _budget(goal: Learning, result: dict[str, Any]) -> str:
    return f"{result['settings']['steps']:,}" if goal.episodes is None else f"{goal.episodes:,} episodes"


def _seeds(complete: int, one: dict[str, Any]) -> str:
    """Return the number of seeds, and how many a complete result has if some are missing."""
    return f"{one['seeds']} of {complete}" if one["seeds"] < complete else str(one["seeds"])


def _goal(goal: Learning, one: dict[str, Any]) -> str:
    """Return the task's goals and whether they are met."""
    verdict = {True: ": met", False: ": missed", None: ""}[one["met"]]
    parts = []
    if goal.share is not None and goal.median is not None:
        reached = sum(score >= goal.median for score in one["scores"])
        parts.append(f"{goal.median:g} in {goal.share:.0%} of the seeds{verdict} ({reached} of {one['seeds']})")
    elif goal.median is not None:
        worst = "" if goal.worst is None else f", worst {goal.worst:g}"
        parts.append(f"median {goal.median:g}{worst}{verdict}")
    if goal.success is not None:
        parts.append(f"success {goal.success:.0%}{verdict} ({one['success']:.1%})")
    elif "success" in one:
        parts.append(f"success {one['success']:.1%}")
    return "; ".join(parts)


def _peers(one: dict[str, Any]) -> str:
    """Return the difference from each peer, the outcome and whether the learning bar is met."""
    bars = {True: ", bar met", False: ", bar missed", None: ""}
    return "; ".join(
        f"{peer} {difference(found)}: {found['outcome']}{bars[found['passes']]}" for peer, found in one["peers"].items()
    )


def _beside(task: Task, who: str, one: dict[str, Any]) -> str:
    """Return the difference from the stored runs of the task beside this one, on the same backend."""
    goal = task.learning
    assert goal is not None
    path = RESULTS / "learning" / f"{goal.beside}.json"
    if not path.exists():
        return ""
    theirs = json.loads(path.read_text())["summary"][who]["scores"]
    found = stats.difference(one["scores"], theirs, task.span, goal.min_seeds)
    return f"{goal.beside} {difference(found)}: {found['outcome']}"


# Cells


def ratio(found: dict[str, Any] | None) -> str:
    """Return a ratio with its interval; nothing if there is none."""
    if found is None:
        return ""
    interval = "" if found["low"] is None else f" ({found['low']:.2f} to {found['high']:.2f})"
    return f"{found['ratio']:.2f}{interval}"


def difference(found: dict[str, Any], digits: int = 1) -> str:
    """Return a difference of returns with its interval."""
    form = f"+.{digits}f"
    interval = "" if found["low"] is None else f" ({found['low']:{form}} to {found['high']:{form}})"
    return f"{found['difference']:{form}}{interval}"


def iqm(found: dict[str, Any], digits: int = 1) -> str:
    """Return an inter-quartile mean with its interval."""
    low, high = found["iqm_low"], found["iqm_high"]
    interval = "" if low is None else f" ({low:.{digits}f} to {high:.{digits}f})"
    return f"{found['iqm']:.{digits}f}{interval}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are aligned in a terminal too."""
    widths = [max(3, *(len(row[column]) for row in (head, *rows))) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (head, *rows)
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], prog="report")
    parser.add_argument("--readme", action="store_true", help="print the two short tables of the README")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the results")
    chosen = parser.parse_args(arguments)
    tables = (readme_tables,) if chosen.readme else TABLES
    print("\n".join(table(chosen.results) for table in tables), end="")


if __name__ == "__main__":
    main()
