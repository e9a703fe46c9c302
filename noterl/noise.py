"""Noise processes for continuous actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from noterl.explorer import Explorer
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.utils.checks import check_count, check_int, finite, non_negative, positive


def _floats(name: str, value: Any, axes: tuple[str, ...]) -> NDArray[np.float64]:
    """Return an array with these axes, or raise a ValueError that names the attribute."""
    numbers = np.array(value)
    if numbers.ndim != len(axes) or numbers.dtype.kind != "f" or not np.isfinite(numbers).all():
        raise ValueError(f"{name} must be finite floats, [{', '.join(axes)}], got {value!r}")
    return numbers.astype(np.float64)


def _positions(name: str, value: Any) -> NDArray[np.int64]:
    """Return positions `[lanes]`, or raise a ValueError that names the attribute."""
    positions = np.array(value)
    if positions.ndim != 1 or positions.dtype.kind not in "iu" or (positions < 0).any():
        raise ValueError(f"{name} must be ints of at least 0, [lanes], got {value!r}")
    return positions.astype(np.int64)


def with_noise(
    weights: Sequence[NDArray[Any]], places: Sequence[int], generator: np.random.Generator
) -> list[NDArray[Any]]:
    """Return weights with new noise of acting in these places; see `noterl.networks.noisy`."""
    noisy = list(weights)
    for place in places:
        noisy[place] = sample_noise(weights[place].shape, generator)
    return noisy


def sample_noise(shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[np.float32]:
    """Return `sgn(x) sqrt(|x|)` of standard normal numbers x (Fortunato et al., 2018)."""
    numbers = generator.standard_normal(shape, np.float32)
    return np.sign(numbers) * np.sqrt(np.abs(numbers))


class NoiseProcess(Explorer):
    """Base of the noises, with an annealed standard deviation.

    After n environment steps, the standard deviation is
    `sigma_n = max(sigma_min, sigma - (sigma - sigma_min) * n / n_steps_annealing)`: a straight line from `sigma` to
    `sigma_min`. Without `sigma_min` the standard deviation is constant. A call for several lanes counts as one step per
    lane, and all these lanes use the same `current_sigma`. Random actions before `learning_starts` count too.

    Args:
        mu: mean.
        sigma: initial standard deviation, at least 0.
        sigma_min: standard deviation after annealing, between 0 and `sigma`; None for no annealing.
        n_steps_annealing: number of environment steps of annealing, at least 1.
        size: number of values in one action.

    Attributes:
        n: environment steps so far.
        size: number of values in one action.

    Raises:
        ValueError: if an argument is out of range.
    """

    tunables: ClassVar[dict[str, Any]] = {
        "mu": finite,
        "sigma": non_negative,
        "sigma_min": lambda name, value: None if value is None else non_negative(name, value),
        "n_steps_annealing": check_count,
        "n": partial(check_int, least=0),
    }
    counters: ClassVar[tuple[str, ...]] = ("n",)

    def __init__(
        self,
        mu: float | Schedule = 0.0,
        sigma: float | Schedule = 1.0,
        sigma_min: float | Schedule | None = None,
        n_steps_annealing: int = 1000,
        size: int = 1,
    ) -> None:
        self.mu: Any = mu
        self.sigma: Any = sigma
        self.sigma_min: Any = sigma_min
        self.n_steps_annealing = n_steps_annealing
        self.n = 0
        self.size: int = check_int("size", size)
        if self.sigma_min is not None and self.sigma_min > self.sigma:  # type: ignore[operator]  # both are numbers now
            raise ValueError(f"sigma_min must be at most sigma ({sigma!r}), got {sigma_min!r}")

    @property
    def current_sigma(self) -> float:
        """The standard deviation of the next sample."""
        return self.sigma_at(self.n)

    def sigma_at(self, n: int) -> float:
        """Return the standard deviation of a sample after `n` environment steps."""
        if self.sigma_min is None:
            return self.sigma
        # Without the limit to 1, the line would rise forever if sigma is set below sigma_min.
        fraction = min(n / self.n_steps_annealing, 1.0)
        return max(self.sigma_min, self.sigma - (self.sigma - self.sigma_min) * fraction)

    def sample(self, lanes: int | None = None) -> NDArray[np.float32]:
        """Return the next sample, and count a step of each lane for the annealing.

        Args:
            lanes: number of environments; None for one environment, whose sample has no axis for lanes.

        Returns:
            `[lanes, size]`, or `[size]` without `lanes`; float32.

        Raises:
            ValueError: if `lanes` is not an int of at least 1.
        """
        rows = 1 if lanes is None else check_int("lanes", lanes)
        noise = self.draw(rows).astype(np.float32)
        # After the sample, because the first one has the standard deviation of step 0.
        self.skip(rows)
        return noise[0] if lanes is None else noise

    def draw(self, lanes: int) -> NDArray[np.float64]:
        """Return noise `[lanes, size]` with the standard deviation `current_sigma`; a subclass defines the method."""
        raise NotImplementedError(f"{type(self).__name__} must define draw(lanes)")

    def reset(self, lane: int | None = None) -> None:
        """Called when an episode starts in `lane`, or in all lanes for None. The annealing continues."""


@register
class GaussianWhiteNoiseProcess(NoiseProcess):
    """Independent noise `N(mu, sigma_n)`, with the arguments and annealing of `NoiseProcess`.

    Example:
    >>> from noterl.noise import GaussianWhiteNoiseProcess
    >>> noise = GaussianWhiteNoiseProcess(sigma=1.0, sigma_min=0.2, n_steps_annealing=10, size=3)
    >>> noise.sample(lanes=5).shape
    (5, 3)
    >>> noise.n, noise.current_sigma
    (5, 0.6)
    """

    def draw(self, lanes: int) -> NDArray[np.float64]:
        """Return noise `[lanes, size]`."""
        return self.generator.normal(self.mu, self.current_sigma, (lanes, self.size))


@register
class OrnsteinUhlenbeckProcess(NoiseProcess):
    """Noise that reverts to `mu`: `x' = x + theta * (mu - x) * dt + sigma_n * sqrt(dt) * N(0, 1)`.

    This is the Euler scheme for the process of Uhlenbeck & Ornstein, "On the Theory of the Brownian Motion", 1930. Each
    lane has its own x, which starts at `x_0 ~ N(mu, sigma_n)` when the lane is first sampled, and at every `reset`. A
    sample is `x'`.

    Args:
        theta: rate of the reversion to `mu` per unit of time, at least 0.
        mu: mean.
        sigma: initial strength of the noise, at least 0.
        dt: time between two samples, above 0; `theta * dt` must be below 2, or x would diverge.
        size: number of values in one action.
        sigma_min: strength after annealing, between 0 and `sigma`; None for no annealing.
        n_steps_annealing: number of environment steps of annealing, at least 1.

    Attributes:
        x: `[lanes, size]`, float64, the last sample of each lane.

    Raises:
        ValueError: if an argument is out of range.

    Example:
    >>> from noterl.noise import OrnsteinUhlenbeckProcess
    >>> noise = OrnsteinUhlenbeckProcess(theta=0.15, sigma=0.2, size=3)
    >>> noise.sample().shape
    (3,)
    """

    tunables: ClassVar[dict[str, Any]] = {
        **NoiseProcess.tunables,
        "theta": non_negative,
        "dt": positive,
        "x": partial(_floats, axes=("lanes", "size")),
    }

    def __init__(
        self,
        theta: float | Schedule,
        mu: float | Schedule = 0.0,
        sigma: float | Schedule = 1.0,
        dt: float | Schedule = 1e-2,
        size: int = 1,
        sigma_min: float | Schedule | None = None,
        n_steps_annealing: int = 1000,
    ) -> None:
        super().__init__(mu, sigma, sigma_min, n_steps_annealing, size)
        self.theta: Any = theta
        self.dt: Any = dt
        self._check_stability()
        self.x: np.ndarray = np.empty((0, size))

    def _check_stability(self) -> None:
        # At 2 or above, each step overshoots the mean by at least the distance before, and the noise grows without
        # bound.
        if self.theta * self.dt >= 2:
            raise ValueError(f"theta must be below 2 / dt ({2 / self.dt:g}), got {self.theta!r}")

    def draw(self, lanes: int) -> NDArray[np.float64]:
        """Move the states of the lanes on by a step, and return a view of the states `[lanes, size]`.

        New lanes start here.

        Raises:
            ValueError: if `theta * dt` has become 2 or more.
        """
        self._check_stability()
        if lanes > len(self.x):
            self.x = np.concatenate([self.x, self._start(lanes - len(self.x))])
        states = self.x[:lanes]
        diffusion = self.current_sigma * math.sqrt(self.dt) * self.generator.standard_normal(states.shape)
        # In place, so that the states of the lanes change, too.
        states += self.theta * (self.mu - states) * self.dt + diffusion
        return states

    def reset(self, lane: int | None = None) -> None:
        """Sample `x_0` again for `lane`, or for all lanes for None."""
        if lane is None:
            self.x[:] = self._start(len(self.x))
        elif lane < len(self.x):
            self.x[lane] = self._start(1)[0]

    def remove_lane(self, lane: int) -> None:
        """Remove a lane; the later lanes move up by one."""
        if lane < len(self.x):
            self.x = np.delete(self.x, lane, axis=0)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`.

        Raises:
            ValueError: as in `Explorer`, and if `x` has another action size; this object is then unchanged.
        """
        shape = np.shape(state.get("x", np.empty((0, self.size))))
        if len(shape) == 2 and shape[1] != self.size:
            raise ValueError(f"state['x'] must be [lanes, {self.size}], got the shape {shape}")
        super().set_state(state)

    def _start(self, lanes: int) -> NDArray[np.float64]:
        return self.generator.normal(self.mu, self.current_sigma, (lanes, self.size))


@register
class ColoredNoise(NoiseProcess):
    """Noise whose power falls with the frequency f as `1 / f ** beta`: slow changes that reach far.

    Eberhard et al., "Pink noise is all you need: colored noise exploration in deep reinforcement learning", 2023; the
    sequences follow Timmer and König, "On generating power law noise", 1995, with the mean 0 and the variance 1. Each
    lane has a separate sequence. A new one starts when an episode starts and when the sequence ends.

    DDPG and TD3 add the noise to the scaled action. SAC uses the noise in place of independent Gaussian samples, so
    that `sigma` is a factor of the policy's standard deviation: leave `sigma` at 1.

    Args:
        beta: 0 for white noise, 1 for pink noise, 2 for red noise; at least 0.
        mu: mean.
        sigma: initial standard deviation, at least 0.
        length: samples of a sequence, at least 2: the length of usual episodes.
        size: number of values in one action.
        sigma_min: standard deviation after annealing, between 0 and `sigma`; None for no annealing.
        n_steps_annealing: number of environment steps of annealing, at least 1.

    Attributes:
        sequences: `[lanes, length, size]`, float64, the sequence of each lane.
        positions: `[lanes]`, the number of samples that were taken of each sequence.

    Raises:
        ValueError: if an argument is out of range.

    Example:
    >>> from noterl.noise import ColoredNoise
    >>> noise = ColoredNoise(beta=1, sigma=0.3, size=2)
    >>> noise.sample(lanes=4).shape
    (4, 2)
    """

    tunables: ClassVar[dict[str, Any]] = {
        **NoiseProcess.tunables,
        "beta": non_negative,
        "sequences": partial(_floats, axes=("lanes", "length", "size")),
        "positions": _positions,
    }

    def __init__(
        self,
        beta: float | Schedule = 1.0,
        mu: float | Schedule = 0.0,
        sigma: float | Schedule = 1.0,
        length: int = 1000,
        size: int = 1,
        sigma_min: float | Schedule | None = None,
        n_steps_annealing: int = 1000,
    ) -> None:
        super().__init__(mu, sigma, sigma_min, n_steps_annealing, size)
        self.beta: Any = beta
        self.length: int = check_int("length", length, least=2)
        self.sequences: np.ndarray = np.empty((0, length, size))
        self.positions: np.ndarray = np.empty(0, np.int64)

    def draw(self, lanes: int) -> NDArray[np.float64]:
        """Take the next sample of the sequence of each lane, and return noise `[lanes, size]`; new lanes start here."""
        if lanes > len(self.positions):
            new = lanes - len(self.positions)
            self.sequences = np.concatenate([self.sequences, self._start(new)])
            self.positions = np.append(self.positions, np.zeros(new, np.int64))
        for lane in np.flatnonzero(self.positions[:lanes] == self.length):
            self.reset(int(lane))
        samples = self.sequences[np.arange(lanes), self.positions[:lanes]]
        self.positions[:lanes] += 1
        return self.mu + self.current_sigma * samples

    def reset(self, lane: int | None = None) -> None:
        """Start a new sequence in `lane`, or in all lanes for None."""
        if lane is None:
            self.sequences[:] = self._start(len(self.sequences))
            self.positions[:] = 0
        elif lane < len(self.positions):
            self.sequences[lane] = self._start(1)[0]
            self.positions[lane] = 0

    def remove_lane(self, lane: int) -> None:
        """Remove a lane; the later lanes move up by one."""
        if lane < len(self.positions):
            self.sequences = np.delete(self.sequences, lane, axis=0)
            self.positions = np.delete(self.positions, lane)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`.

        Raises:
            ValueError: as in `Explorer`, and if the sequences have another shape; this object is then unchanged.
        """
        shape = np.shape(state.get("sequences", ()))
        positions = np.asarray(state.get("positions"))
        if len(shape) == 3:
            if shape[1:] != (self.length, self.size):
                size = f"[lanes, {self.length}, {self.size}]"
                raise ValueError(f"state['sequences'] must be {size}, got the shape {shape}")
            if positions.dtype.kind in "iu" and (positions.shape != shape[:1] or (positions > self.length).any()):
                raise ValueError(f"state['positions'] must be a place in each of {shape[0]} sequences, got {positions}")
        super().set_state(state)

    def _start(self, lanes: int) -> NDArray[np.float64]:
        """Return new sequences `[lanes, length, size]`: the inverse Fourier transforms of scaled Gaussian numbers."""
        length = self.length
        # The frequency 0 has the power of the lowest other one.
        # The exponent is halved, because the power is the square of the amplitude.
        scale = np.maximum(np.arange(length // 2 + 1), 1.0) ** (-self.beta / 2)
        real, imaginary = self.generator.standard_normal((2, lanes, self.size, len(scale))) * scale
        weights = scale[1:].copy()
        # These frequencies have no imaginary part, so their real part has all of the power.
        ends = [0] if length % 2 else [0, -1]
        real[..., ends] *= math.sqrt(2)
        imaginary[..., ends] = 0.0
        # The last frequency of an even length occurs once, the others as a pair of plus and minus.
        weights[-1] *= 1.0 if length % 2 else 0.5
        deviation = 2 * math.sqrt(np.sum(weights**2)) / length
        return np.moveaxis(np.fft.irfft(real + 1j * imaginary, length) / deviation, -1, 1)
