"""Writing frames as an animation, a `.gif` or a `.mp4`."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl.utils.files import replacing

if TYPE_CHECKING:
    from PIL import Image


class _FramesFailed(Exception):
    """Raised while frames are written, so that an OSError of the environment is not reported as one of the file."""


def write_video(path: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    """Write frames `[height, width, 3]`, uint8, as a `.gif` or `.mp4` file, which replaces an old one atomically.

    Raises:
        ImportError: if the path ends in `.mp4` and the extra `mp4` is not installed.
        OSError: if the file cannot be written, or ffmpeg fails.
    """
    encoder = find_encoder(path)

    def guarded() -> Iterator[np.ndarray]:
        try:
            first = next(frames)
            yield first
            for frame in frames:
                if frame.shape != first.shape:
                    raise ValueError(
                        f"env: all frames of a video must have one size, got {frame.shape} after {first.shape}; resize "
                        "them in render, or save them with frame_dir="
                    )
                yield frame
        except OSError as error:
            raise _FramesFailed(error) from None

    try:
        if encoder is None:
            # An animation that repeats without end.
            images = _with_palettes(guarded())
            # GIF durations are multiples of 10 ms; browsers slow down anything below 20 ms.
            options: Any = {"save_all": True, "duration": max(20, round(1000 / fps)), "loop": 0, "optimize": False}
            with replacing(path) as file:
                next(images).save(file, "GIF", append_images=images, **options)
        else:
            # ffmpeg writes a temporary file, which replaces a file at `path` when the temporary file is complete.
            with tempfile.TemporaryDirectory() as directory, replacing(path) as target:
                encoded = Path(directory, "animation.mp4")
                _encode(encoder, encoded, guarded(), fps)
                with open(encoded, "rb") as file:
                    shutil.copyfileobj(file, target)
    except _FramesFailed as failed:  # an error of the environment, not of the file
        raise failed.args[0] from None


def as_bytes(frame: Any) -> np.ndarray:
    """Return a frame `[height, width, 3]` in bytes: floats in [0, 1] are scaled, and gray frames get three channels.

    Raises:
        ValueError: if `frame` is not an image, or has values outside of [0, 1] and of [0, 255].
    """
    image = np.asarray(frame)
    if image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 1):
        image = np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
    if not isinstance(frame, np.ndarray) or image.ndim != 3 or image.shape[2] not in (3, 4) or not image.size:
        raise ValueError(
            "env: render must return an array [height, width, 3], [height, width, 4] or [height, width] with "
            f"render_mode='rgb_array', got {type(frame).__name__} of the shape {np.shape(frame)}"
        )
    image = image[..., :3]
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    low, high = image.min(), image.max()
    if not 0 <= low <= high <= 255:
        raise ValueError(f"env: frames must hold values in [0, 255], or floats in [0, 1], got {low} to {high}")
    is_share = image.dtype.kind in "fb" and high <= 1
    return np.ascontiguousarray(np.rint(image * 255.0 if is_share else image), np.uint8)


def annotate(frame: np.ndarray, text: str) -> np.ndarray:
    """Return a copy of a frame `[height, width, 3]` with a line of text at the top."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(frame)
    font = ImageFont.load_default(size=max(10, frame.shape[0] // 25))
    ImageDraw.Draw(image).text((4, 4), text, fill="white", font=font, stroke_width=1, stroke_fill="black")
    return np.asarray(image)


def find_encoder(path: Path) -> str | None:
    """Return the path of ffmpeg, which a `.mp4` file needs; None for a `.gif`.

    Raises:
        ImportError: if the extra is not installed.
    """
    if path.suffix.lower() == ".gif":
        return None
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise ImportError('writing .mp4 needs an extra: pip install "noterl[mp4]"; a .gif needs none') from error
    return str(imageio_ffmpeg.get_ffmpeg_exe())


def _with_palettes(frames: Iterator[np.ndarray]) -> Iterator[Image.Image]:
    """Yield the frames with a palette of 256 colors, which changes only if the palette does not fit a frame.

    For a frame of 600x400 pixels, a new palette takes 16 ms, and to apply it to what has changed below 1 ms.
    """
    from PIL import Image, ImageChops

    before: Any = None
    palette: Any = None
    limit = 0.0
    for image in map(Image.fromarray, frames):
        box = None if before is None else ImageChops.difference(image, before).getbbox()
        if before is None or box is not None:
            part = image.crop(box)
            changed = None if before is None else part.quantize(palette=palette, dither=Image.Dither.NONE)
            if changed is None or _error(part, changed) > limit:
                palette = image.quantize(256)
                shown = palette
                # Pictures with more colors than a palette has are never exact.
                limit = max(16.0, 1.5 * _error(image, palette))
            else:
                shown = shown.copy()
                shown.paste(changed, box)
        before = image
        yield shown


def _error(image: Image.Image, shown: Image.Image) -> float:
    """Return the largest difference of a pixel's red, green or blue, of 255."""
    from PIL import ImageChops

    extrema: Any = ImageChops.difference(image, shown.convert("RGB")).getextrema()
    return float(max(high for _, high in extrema))


def _encode(program: str, made: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    """Encode the frames with ffmpeg.

    The function of imageio_ffmpeg is not used, because it forks, which is unsafe while threads of a framework run.
    """
    first = next(frames)
    size = f"{first.shape[1]}x{first.shape[0]}"
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(fps), "-i", "-"]
    # H.264 needs even sizes, and most players need this pixel format.
    result = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-c:v", "libx264", "-pix_fmt", "yuv420p", str(made)]
    command = [program, "-y", "-loglevel", "error", *source, *result]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        try:
            with process.stdin as pipe:  # type: ignore[union-attr]
                for frame in itertools.chain([first], frames):
                    pipe.write(frame.data)
        except BrokenPipeError:
            pass  # ffmpeg's own message explains more
        finally:
            process.wait()
        if process.returncode:
            output.seek(0)
            raise OSError(f"ffmpeg failed: {output.read().decode(errors='replace')[-1000:]}")
