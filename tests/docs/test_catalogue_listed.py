"""The tables of docs/ list every callback and finder, and the names in the migration tables exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import noterl
import noterl.callbacks
import noterl.finders
from noterl import migration

pytestmark = [pytest.mark.backend_free, pytest.mark.slow]

DOCS = Path(__file__).parents[2] / "docs"
MIGRATION = {
    "Note_rl": "migration/note_rl.md",
    "xagents": "migration/xagents.md",
    "Keras": "migration/keras.md",
    "Stable-Baselines3": "migration/stable_baselines3.md",
    "gymnasium": "migration/gymnasium.md",
}


def tables(page: str, heading: str) -> list[list[str]]:
    """Return the rows of all tables of a page whose first column has this heading, by cells."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for library in migration.LIBRARIES:
        for section in migration.sections(library):
            name = migration.file_name(library, section)
            text = text.replace(f"```{{include}} ../_generated/{name}\n```\n", migration.markdown(library, section))
    rows = []
    for part in text.split(f"\n| {heading} |")[1:]:
        rows += part.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def catalogue() -> list[list[str]]:
    rows = tables("callbacks.md", "Callback")
    assert all(len(row) == 3 for row in rows)
    return rows


def test_every_callback_is_in_the_table() -> None:
    assert sorted(re.findall(r"\w+", row[0])[0] for row in catalogue()) == sorted(noterl.callbacks.__all__)


def test_every_callback_is_described() -> None:
    assert all(len(row[1]) > 15 or row[0] == "`Callback`" for row in catalogue())


def test_every_finder_is_described() -> None:
    text = (DOCS / "finders.md").read_text(encoding="utf-8")
    for name in set(noterl.finders.__all__) - {"FinderLogger"}:
        assert f"\n`{name}` " in text, name


def test_logger_of_the_finders_is_in_the_catalogue() -> None:
    assert noterl.callbacks.FinderLogger is noterl.finders.FinderLogger


def known_names() -> set[str]:
    """Return every public class of the library, read from its source, so that no backend is imported."""
    root = Path(__file__).parents[2]
    files = [*(root / "noterl").rglob("*.py"), *(root / "callbacks").rglob("*.py")]
    return {name for file in files for name in re.findall(r"^class ([A-Z]\w+)", file.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("origin", MIGRATION)
def test_names_in_the_migration_tables_exist(origin: str) -> None:
    rows = tables(MIGRATION[origin], origin)
    assert len(rows) > 5
    for row in rows:
        assert len(row) == 2, row
        code = " ".join(re.findall(r"`([^`]+)`", row[1])).replace("keras.optimizers.Adam", "")
        names = set(re.findall(r"(?<![.\w\"])([A-Z][a-z]\w+|[A-Z]{3,}[a-z]?\w*)", code))
        names -= {"True", "False", "None", "KERAS_BACKEND"}
        assert names <= known_names(), (row, names - known_names())


# Names in the documentation of other libraries: each must be in the first column of a migration table.
FOREIGN_NAMES = {
    "Note_rl": """
        policy noise pool_size batch num_updates num_steps update_batches update_steps trial_count criterion PPO HER TRL
        MARL PR IRL initial_ratio initial_TD lambda_ alpha patience path save_freq save_freq_ max_save_files save_top_k
        save_last save_best_only save_param_only callbacks stop_training loss_list reward_list total_episode seed
        train_loss optimizer episodes pool_network parallel_store_and_training parallel_training_and_save parallel_dump
        processes num_store window_size clearing_freq window_size_ window_size_ppo window_size_pr jit_compile random
        save_data p distributed_training strategy num_episodes get_optimal_processes processes_her processes_pr
        window_size_func adjust_window_size compute_ess adjust_batch_size adabatch adjust adjust_func target_ess
        target_noise num_samples smooth batch_params alpha_params lr_params eps_params freq_params tau_params
        gamma_params store_params clip_params beta_params num_updates_params weight_decay_params beta1_params
        beta2_params estimate_gradient_variance initialize_adjusting build build_ shared_param save_checkpoint
        save_param restore_param save restore restore_p save_in_parallel run_agent animate_agent visualize_reward
        visualize_loss visualize_reward_loss LRFinder OptFinder ParallelFinder LambdaCallback get_best_lr N metrics
        start_lr end_lr best_opt action __call__ update_param reward_done_func reward_done_func_ma time total_time
    """,
    "xagents": """
        --beta1 --beta2 --env --lr --max-frame --n-envs --opt-epsilon --preprocess --weights --checkpoints
        --display-precision --divergence-monitoring-steps --early-stop-patience --gamma --history-checkpoint
        --log-frequency --plateau-reduce-factor --plateau-reduce-patience --quiet --reward-buffer-size --seed
        --buffer-batch-size --buffer-initial-size --buffer-max-size --max-steps --monitor-session --target-reward
        --action-idx --frame-delay --frame-dir --frame-frequency --render --video-dir --n-jobs --n-trials --non-silent
        --storage --study --trial-steps --warmup-trials --entropy-coef --grad-norm --model --n-steps --value-loss-coef
        --delta --ema-alpha --epsilon --importance-c --replay-ratio --trust-region --actor-model --critic-model
        --gradient-steps --step-noise-coef --tau --double --epsilon-decay-steps --epsilon-end --epsilon-start
        --target-sync-steps --advantage-epsilon --clip-norm --lam --mini-batches --ppo-epochs --noise-clip
        --policy-delay --policy-noise-coef --actor-iterations --cg-damping --cg-iterations --cg-residual-tolerance
        --critic-iterations --fvp-n-steps --max-kl
    """,
    "Keras": """
        BackupAndRestore CSVLogger Callback EarlyStopping History LambdaCallback LearningRateScheduler ModelCheckpoint
        OrbaxCheckpoint ProgbarLogger ReduceLROnPlateau RemoteMonitor SwapEMAWeights TensorBoard TerminateOnNaN
    """,
    "Stable-Baselines3": """
        BaseCallback EventCallback CallbackList CheckpointCallback ConvertCallback EvalCallback EveryNTimesteps
        LogEveryNTimesteps StopTrainingOnRewardThreshold StopTrainingOnMaxEpisodes StopTrainingOnNoModelImprovement
        ProgressBarCallback save_freq save_replay_buffer eval_freq n_eval_episodes best_model_save_path
        callback_on_new_best callback_after_eval deterministic log_path eval_env
    """,
}


@pytest.mark.parametrize("origin", migration.LIBRARIES)
def test_page_includes_every_word(origin: str) -> None:
    rows = tables(MIGRATION[origin], origin)
    for section in migration.sections(origin).values():
        for key, line in section.items():
            assert [", ".join(f"`{word}`" for word in key.split(", ")), line] in rows, key


@pytest.mark.parametrize("origin", FOREIGN_NAMES)
def test_every_name_of_the_other_library_is_in_its_table(origin: str) -> None:
    left = " ".join(row[0] for row in tables(MIGRATION[origin], origin))
    patterns = {name: rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in FOREIGN_NAMES[origin].split()}
    missing = [name for name, pattern in patterns.items() if not re.search(pattern, left)]
    assert not missing
