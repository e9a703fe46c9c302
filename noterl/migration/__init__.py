"""The words of other libraries and what replaces them in noterl: tables of error messages and of docs/migration/.

Each TOML file is one library: sections of the library's page, each with rows `"word, word" = "replacement"`. A word is
spelled as by the library's users, such as `n_steps` or `--n-steps`. A file is read when an error needs the words, or
when the docs are built.
"""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources

# Library -> its file, which has the name of its page.
LIBRARIES = {
    "Stable-Baselines3": "stable_baselines3",
    "Keras": "keras",
    "gymnasium": "gymnasium",
    "Note_rl": "note_rl",
    "xagents": "xagents",
}


@functools.cache
def sections(library: str) -> dict[str, dict[str, str]]:
    """Return the tables of a library: section of the library's page -> words, separated by ", " -> replacement."""
    file = resources.files(__name__) / f"{LIBRARIES[library]}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def replacement_of(word: str) -> str | None:
    """Return what replaces a word of other libraries in noterl; None if no library has the word.

    An option of a command line is the same word as the argument: `--n-steps` and `n_steps`.

    Example:
    >>> from noterl.migration import replacement_of
    >>> replacement_of("lam")
    "xagents's --lam in noterl: gae_lambda="
    """
    replacements = _replacements().get(argument_name(word), {})
    return ". ".join(f"{owner} in noterl: {line}" for line, owner in replacements.items()) or None


def argument_name(word: str) -> str:
    """Return the name of the argument that a word of a table is: "n_steps" for "--n-steps" and "play --n-steps"."""
    return word.split()[-1].lstrip("-").replace("-", "_") if word.strip("- ") else ""


def markdown(library: str, section: str) -> str:
    """Return the table of one section for the page of a library."""
    rows = [f"| {library} | noterl |", "| --- | --- |"]
    for words, line in sections(library)[section].items():
        rows.append(f"| {', '.join(f'`{word}`' for word in words.split(', '))} | {line} |")
    return "\n".join(rows) + "\n"


def file_name(library: str, section: str) -> str:
    """Return the name of the file that holds the table of a section while the docs are built."""
    return f"words_{library}_{section}.md".lower().replace("-", "_").replace(" ", "_")


@functools.cache
def _replacements() -> dict[str, dict[str, str]]:
    """Return, for each word, the replacements as plain text, each with the library and the word."""
    replacements: dict[str, dict[str, str]] = {}
    for library in LIBRARIES:
        for rows in sections(library).values():
            for words, line in rows.items():
                # Errors are read in a terminal, which shows no links.
                plain = re.sub(r"\[(.+?)\]\(.+?\)", r"\1", line).replace("`", "")
                for word in words.split(", "):
                    replacements.setdefault(argument_name(word), {}).setdefault(
                        plain, f"{library}'s {word.split()[-1]}"
                    )
    return replacements
