"""`Atari`: games of the Atari 2600 with the preprocessing of the DQN paper, stepped by ale-py's C++ threads.

Paper: Mnih et al., "Human-level control through deep reinforcement learning" (Nature, 2015).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from noterl.envs.rewards import GAME_REWARD, UNCLIPPED_REWARD
from noterl.envs.vectorized import VectorMaker
from noterl.registry import register
from noterl.utils.checks import check_bool, check_int, probability
from noterl.utils.optional import require
from noterl.utils.words import explain_name


@register
@dataclass(eq=False, repr=False)
class Atari(VectorMaker):
    """An Atari game for an agent: `noterl.DQN(noterl.envs.Atari("Pong"))`.

    An observation is the last frames, the oldest first, in gray bytes: `[4, 84, 84]`. The first frame of an episode is
    repeated. The default memory, and `noterl.Replay(..., frame_stack=4)`, store each frame once. Training runs in
    ale-py's `AtariVectorEnv`. Evaluation and `play` use gymnasium's wrappers, which return the same frames. Both play
    whole games with the rewards of the game. Logs show the rewards of the game, too.

    Args:
        game: the name, such as "Pong" or "SpaceInvaders".
        stack: frames in an observation.
        skip: frames for which the emulator repeats an action. The rewards of these frames are added.
        size: height and width of a frame in pixels.
        grayscale: whether frames are gray; otherwise an observation is `[stack, size, size, 3]`.
        max_pool: whether each pixel is the maximum of the last two frames, because some games draw objects in every
            second frame only.
        noop_max: an episode starts with a random number of frames without an action, up to this one.
        fire_on_reset: whether an episode starts with FIRE if the game has this action.
        episodic_life: whether an episode of training ends with a life; the game then goes on in the next episode.
            `fit(info={"game_reward": "last"})` logs the reward of whole games. Evaluation plays whole games.
        clip_rewards: whether agents learn from the signs of the rewards.
        repeat_action_probability: the probability with which the emulator repeats the previous action in a frame. The
            paper has 0; Machado et al. (2018) recommend 0.25.
        full_action_space: whether all 18 actions are legal in each game.
        max_frames: frames of the emulator after which an episode is truncated.
        threads: number of C++ threads; 0 for one per lane, but not more than processor cores.

    Raises:
        ValueError: if an argument is not one of the allowed values.
        ImportError: if the extra `atari` is not installed.

    Example:
    >>> import noterl
    >>> game = noterl.envs.Atari("SpaceInvaders", episodic_life=True)
    >>> game
    Atari('SpaceInvaders', episodic_life=True)
    """

    game: str
    _: KW_ONLY
    stack: int = 4
    skip: int = 4
    size: int = 84
    grayscale: bool = True
    max_pool: bool = True
    noop_max: int = 30
    fire_on_reset: bool = True
    episodic_life: bool = False
    clip_rewards: bool = True
    repeat_action_probability: float = 0.0
    full_action_space: bool = False
    max_frames: int = 108_000
    threads: int = 0

    def __post_init__(self) -> None:
        for name in ("stack", "skip", "size", "max_frames"):
            check_int(name, getattr(self, name))
        for name in ("noop_max", "threads"):
            check_int(name, getattr(self, name), least=0)
        for name, value in vars(self).items():
            if isinstance(getattr(Atari, name, None), bool):
                check_bool(name, value)
        self.repeat_action_probability = probability("repeat_action_probability", self.repeat_action_probability)
        roms = require("ale_py.roms", "atari", "noterl.envs.Atari")
        roms_by_name = {rom.replace("_", ""): rom for rom in roms.get_all_rom_ids()}
        name = str(self.game).rpartition("/")[2].partition("-v")[0].replace("_", "").lower()
        if not isinstance(self.game, str) or name not in roms_by_name:
            titles = {key: rom.title().replace("_", "") for key, rom in roms_by_name.items()}
            advice = explain_name(str(self.game), list(titles.values()))
            raise ValueError(f"game must be the name of an Atari game, got {self.game!r}: {advice}")
        # ale-py's name of the game, such as "space_invaders" for "SpaceInvaders".
        self.rom: str = str(roms_by_name[name])
        self.frame_stack: int | None = self.stack if self.stack > 1 else None

    def make_vector(self, num_envs: int) -> AtariVector:
        """Return a vector environment in the autoreset mode SAME_STEP."""
        return AtariVector(self, num_envs)

    def make_single(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """Return an environment that plays whole games with the rewards of the game."""
        from ale_py.env import AtariEnv
        from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, RepeatAction

        make: Any = AtariEnv
        env: Any = make(
            self.rom,
            # The emulator repeats no action itself: the wrappers below do, and need each frame for the maximum of two.
            frameskip=1,
            repeat_action_probability=self.repeat_action_probability,
            full_action_space=self.full_action_space,
            max_num_frames_per_episode=self.max_frames,
            render_mode=render_mode,
        )
        noop_max = self.noop_max
        if self.fire_on_reset and "FIRE" in env.get_action_meanings():
            env = FireOnReset(env)
            noop_max = max(0, noop_max - 1)  # ale-py counts the frame of FIRE, too
        skip = self.skip if self.max_pool else 1  # gymnasium's wrapper pools whenever it skips
        env = AtariPreprocessing(env, noop_max, skip, self.size, grayscale_obs=self.grayscale)
        if skip < self.skip:
            env = RepeatAction(env, self.skip)
        return FrameStackObservation(env, self.stack)


class FireOnReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes the action FIRE at the start of each episode of an Atari game.

    Args:
        env: an environment of ale-py.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        meanings: Any = env.unwrapped
        self._fire = meanings.get_action_meanings().index("FIRE")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with FIRE."""
        self.env.reset(seed=seed, options=options)
        observation, _, _, _, info = self.env.step(self._fire)
        return observation, info


class AtariVector(VectorEnv[Any, Any, Any]):
    """ale-py's vector environment, with stacks, clipped rewards and episodic life that are made here.

    The ones of ale-py are not used: the first stacks hold zeros (`Replay(frame_stack=)` repeats the first frame),
    clipping removes the rewards that logs show, and a lost life resets the game.

    Args:
        settings: the game and the preprocessing.
        num_envs: the number of lanes, N.
    """

    def __init__(self, settings: Atari, num_envs: int) -> None:
        from ale_py.vector_env import AtariVectorEnv

        # ale-py writes the autoreset mode into a dict that all vector environments share, unless the class has its own.
        make: Any = type("GameVectorEnv", (AtariVectorEnv,), {"metadata": {}})
        self._settings = settings
        self.num_envs: int = num_envs
        self._env: Any = make(
            settings.rom,
            num_envs,
            num_threads=settings.threads,
            max_num_frames_per_episode=settings.max_frames,
            repeat_action_probability=settings.repeat_action_probability,
            full_action_space=settings.full_action_space,
            autoreset_mode=AutoresetMode.SAME_STEP,
            img_height=settings.size,
            img_width=settings.size,
            grayscale=settings.grayscale,
            # One frame: this class stacks, so that the first stack repeats the first frame.
            stack_num=1,
            frameskip=settings.skip,
            maxpool=settings.max_pool,
            noop_max=settings.noop_max,
            episodic_life=False,
            life_loss_info=settings.episodic_life,
            # Rewards stay as they are, because logs show them; `step` clips.
            reward_clipping=False,
            use_fire_reset=settings.fire_on_reset,
        )
        shape = (settings.stack, *self._env.single_observation_space.shape[1:])
        self.single_observation_space: spaces.Box = spaces.Box(0, 255, shape, np.uint8)
        self.single_action_space: Any = self._env.single_action_space
        self.observation_space: Any = batch_space(self.single_observation_space, num_envs)
        self.action_space: Any = self._env.action_space
        # A dict of this object, because gymnasium shares the one of the class.
        self.metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._stacks = np.zeros((num_envs, *shape), np.uint8)
        self._lives = np.zeros(num_envs, int)
        self._game_rewards = np.zeros(num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """Start a game in each lane; lane k has the seed `seed + k`."""
        frames, info = self._env.reset(seed=np.array(seed) if isinstance(seed, list) else seed, options=options)
        self._stacks[:] = frames  # the only frame, repeated
        self._lives = info["lives"].astype(int)
        self._game_rewards[:] = 0.0
        return self._stacks.copy(), {"lives": self._lives.copy()}

    def step(
        self, actions: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]:
        """Step all lanes. If the episode of a lane ends, the next one starts in the same step."""
        frames, rewards, terminated, truncated, raw_info = self._env.step(np.asarray(actions))
        lives = raw_info["lives"].astype(int)
        over = terminated | truncated
        # A game that ends is reset, so its lives are no fewer than before, unless a truncated one had won lives.
        life_lost = terminated & ~truncated & (lives < self._lives)
        self._lives = lives
        self._game_rewards += rewards
        info: dict[str, Any] = {"lives": lives.copy()}
        if over.any():
            # After a lost life, ale-py's final frames are not initialized; the game's next frame is then the final one.
            lost = life_lost.reshape(-1, *[1] * (frames.ndim - 1))
            final = self._pushed(np.where(lost, frames, raw_info["final_obs"]))
            info |= {"final_obs": final, "_final_obs": over, "final_info": self._final_info(over & ~life_lost)}
        self._stacks = self._pushed(frames)
        # The new episode starts with its first frame repeated, as after `reset`.
        self._stacks[over] = frames[over]
        clipped = rewards.astype(np.float64)
        if self._settings.clip_rewards:
            info[UNCLIPPED_REWARD] = clipped
            clipped = np.sign(clipped)
        return self._stacks.copy(), clipped, terminated, truncated, info

    def _pushed(self, frames: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the stacks `[N, stack, ...]` with new frames `[N, 1, ...]` at the ends."""
        return np.concatenate([self._stacks[:, 1:], frames], axis=1)

    def _final_info(self, game_over: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Return the rewards of the games that are over, and begin new sums."""
        info = {GAME_REWARD: self._game_rewards.copy(), f"_{GAME_REWARD}": game_over}
        # A lost life ends an episode but not the game, so its sum goes on.
        self._game_rewards[game_over] = 0.0
        return info

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads of ale-py."""
        self._env = None
