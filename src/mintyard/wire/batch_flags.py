"""sbatch's flags: which there are, which take a value, and how a command line or an `#SBATCH` line is cut into them.

Nothing is interpreted here. Flags that mintyard has no counterpart for are known by name, so that they are cut rightly
and named to the user instead of being dropped in silence. Source: sbatch(1) of Slurm 24.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

import msgspec

from mintyard.domain.errors import InvalidSpec
from mintyard.domain.limits import MAX_PAYLOAD_BYTES
from mintyard.wire.jobs import closest

DIRECTIVE: Final = "#SBATCH"

SUPPORTED: Final[dict[str, str]] = {
    "array": "a",
    "begin": "b",
    "chdir": "D",
    "constraint": "C",
    "cpus-per-gpu": "",
    "cpus-per-task": "c",
    "dependency": "d",
    "error": "e",
    "export": "",
    "gpus": "G",
    "gpus-per-node": "",
    "gpus-per-task": "",
    "gres": "",
    "job-name": "J",
    "mem": "",
    "mem-per-cpu": "",
    "mem-per-gpu": "",
    "nodes": "N",
    "ntasks": "n",
    "ntasks-per-node": "",
    "output": "o",
    "partition": "p",
    "priority": "",
    "time": "t",
    "wrap": "",
}
"""Long flags that take a value and are understood, with their letter."""

SUPPORTED_SWITCHES: Final[dict[str, str]] = {"hold": "H", "nice": "", "requeue": ""}
"""Long flags that stand alone (`--nice` may carry `=N`) and are understood."""

OTHERS: Final[dict[str, str]] = {
    "account": "A", "acctg-freq": "", "batch": "", "bb": "", "bbf": "", "cluster-constraint": "", "clusters": "M",
    "comment": "", "container": "", "container-id": "", "core-spec": "S", "cores-per-socket": "", "cpu-freq": "",
    "deadline": "", "delay-boot": "", "distribution": "m", "exclude": "x", "export-file": "", "extra": "",
    "extra-node-info": "B", "gid": "", "gpu-bind": "", "gpu-freq": "", "gpus-per-socket": "", "hint": "", "input": "i",
    "licenses": "L", "mail-type": "", "mail-user": "", "mcs-label": "", "mem-bind": "", "mincpus": "", "network": "",
    "nodefile": "F", "nodelist": "w", "ntasks-per-core": "", "ntasks-per-gpu": "", "ntasks-per-socket": "",
    "open-mode": "", "power": "", "prefer": "", "profile": "", "qos": "q", "reservation": "", "signal": "",
    "sockets-per-node": "", "switches": "", "thread-spec": "", "threads-per-core": "", "time-min": "", "tmp": "",
    "tres-bind": "", "tres-per-task": "", "uid": "", "wait-all-nodes": "", "wckey": "",
}  # fmt: skip
"""Flags of sbatch that take a value and are named as unsupported."""

OTHER_SWITCHES: Final[dict[str, str]] = {
    "contiguous": "", "disable-stdout-job-summary": "", "exclusive": "", "get-user-env": "", "ignore-pbs": "",
    "kill-on-invalid-dep": "", "no-kill": "k", "no-requeue": "", "overcommit": "O", "oversubscribe": "s",
    "parsable": "", "propagate": "", "quiet": "Q", "reboot": "", "spread-job": "", "stepmgr": "", "test-only": "",
    "use-min-nodes": "", "verbose": "v", "wait": "W",
}  # fmt: skip
"""Flags of sbatch that stand alone and are named as unsupported."""

_VALUED: Final = SUPPORTED | OTHERS
_SWITCHES: Final = SUPPORTED_SWITCHES | OTHER_SWITCHES
_LETTERS: Final = {letter: name for name, letter in (_VALUED | _SWITCHES).items() if letter}
_UNDERSTOOD: Final = SUPPORTED.keys() | SUPPORTED_SWITCHES.keys()


class Flags(msgspec.Struct, frozen=True):
    """`values` by long name, the last one given wins; `unsupported` flags as they were written, with what is near."""

    values: dict[str, str] = {}
    unsupported: tuple[str, ...] = ()

    def over(self, lower: Flags) -> Flags:
        """These flags, where they are silent those of `lower`."""
        return Flags(
            lower.values | self.values, tuple(dict.fromkeys((*lower.unsupported, *self.unsupported)))
        )


def parse_flags(words: Sequence[str], where: str = "flags") -> Flags:
    """Cut `words` into flags. An unknown flag takes the next word along when it doesn't begin with `-`.

    Errors: `InvalidSpec` for a word that is no flag, a missing value, or one where none belongs.
    """
    values: dict[str, str] = {}
    unsupported: list[str] = []
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        name, value, shown = _cut(word, rest, where)
        if name in _UNDERSTOOD:
            values[name] = value
        else:
            unsupported.append(shown)
    return Flags(values, tuple(dict.fromkeys(unsupported)))


def read_directives(script: str) -> Flags:
    """The flags on the `#SBATCH` lines before the first command, as sbatch reads them; `#` after a blank ends a line.

    Errors: `InvalidSpec` with the line's number.
    """
    if len(script) > MAX_PAYLOAD_BYTES:
        raise InvalidSpec(
            field="script", why=f"has {len(script)} characters, allowed are {MAX_PAYLOAD_BYTES}"
        )
    flags = Flags()
    for number, line in enumerate(script.split("\n"), start=1):
        where = f"script line {number}"
        if line.startswith(DIRECTIVE) and line[len(DIRECTIVE) : len(DIRECTIVE) + 1] in ("", " ", "\t"):
            try:
                words = shlex.split(line[len(DIRECTIVE) :], comments=True)
            except ValueError as error:
                raise InvalidSpec(field=where, why=f"{str(error).lower()}") from None
            if words[:1] in (["hetjob"], ["packjob"]):
                raise InvalidSpec(
                    field=where, why="heterogeneous jobs are not supported; submit a file with `jobs:`"
                )
            flags = parse_flags(words, where).over(flags)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return flags


def _cut(word: str, rest: list[str], where: str) -> tuple[str, str, str]:
    """Long name, value and the flag as written, for the next flag; takes its value from `rest` when it needs one."""
    if word.startswith("--") and len(word) > 2:
        name, equals, value = word[2:].partition("=")
        shown = f"--{name}"
    elif word.startswith("-") and len(word) > 1 and not word.startswith("--"):
        letter, value = word[1], word[2:]
        name, equals = _LETTERS.get(letter, ""), bool(value)
        shown = f"-{letter}"
        if name in _SWITCHES and value:
            rest.append(f"-{value}")
            equals = value = ""
    else:
        raise InvalidSpec(field=where, why=f"{word[:40]!r} is no flag; a flag begins with - or --")
    if name in _VALUED and not equals:
        if not rest:
            raise InvalidSpec(field=where, why=f"{shown} needs a value")
        value = rest.pop()
    elif (
        name in _SWITCHES
        and equals
        and name not in ("nice", "exclusive", "get-user-env", "propagate", "kill-on-invalid-dep")
    ):
        raise InvalidSpec(field=where, why=f"{shown} takes no value")
    elif name not in _VALUED and name not in _SWITCHES:
        if not equals and rest and not rest[-1].startswith("-"):
            rest.pop()
        shown += closest(name, _VALUED.keys() | _SWITCHES.keys())
    return name, value, shown


def separate(words: Sequence[str], where: str = "flags") -> tuple[list[str], list[str]]:
    """The flags among `words`, each with its value, and the words that are none, in their order (sbatch's script and its
    arguments). A single `-` is a word. Errors: `InvalidSpec` for a flag without its value."""
    flags: list[str] = []
    others: list[str] = []
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        if not word.startswith("-") or word == "-":
            others.append(word)
            continue
        before = len(rest)
        taken = list(reversed(rest))
        _cut(word, rest, where)
        flags += [word, *taken[: before - len(rest)]]
    return flags, others
