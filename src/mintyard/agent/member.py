"""One member of an attempt between fork and exec: its session, streams, folder, cores, and the barrier of the gang.

Runs in the child of a supervisor. It speaks by one pipe: `r` when it is ready, end of file when exec took it over,
`x` and a code and text when exec failed. Nothing that belongs to the whole attempt may enter.
"""

from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

from mintyard.agent import kernel

CANNOT_EXECUTE = 126
NOT_FOUND = 127
_SHOWN_CHARS = 100
_RESET = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGUSR1,
)


class Streams:
    """Descriptors of a member: where its output goes, the pipe it speaks by and the barrier it waits at."""

    def __init__(self, stdout: int, stderr: int, status: int, barrier: int) -> None:
        self.stdout, self.stderr, self.status, self.barrier = stdout, stderr, status, barrier


def command_of(spec: dict[str, Any], path: str) -> list[str]:
    """What to execute: `argv`, or the script by the interpreter of its `#!` line, else by /bin/sh.

    The interpreter is called here, not by the kernel, so that a state folder mounted noexec will do."""
    if not spec["script"]:
        return list(spec["argv"])
    first = spec["script"].split("\n", 1)[0].rstrip("\r")
    interpreter = first[2:].split(None, 1) if first.startswith("#!") else []
    return [*(part.strip() for part in interpreter or ["/bin/sh"]), path, *spec["arguments"]]


def become(
    spec: dict[str, Any], member: dict[str, Any], argv: list[str], streams: Streams, parent: int
) -> NoReturn:
    """Turn this child into user code; never returns."""
    try:
        os.setsid()
        kernel.die_with_parent(parent)
        for number in _RESET:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(streams.stdout, 1)
        os.dup2(streams.stderr, 2)
        os.chdir(spec["workdir"])
        os.umask(0o022)
        _bound(member["cores"])
        os.write(streams.status, b"r")
        if os.read(streams.barrier, 1) != b"g":
            os._exit(137)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _execute(argv, member["env"])
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
        text = f"{_shown(argv[0])}: {'command not found' if code == NOT_FOUND else error.strerror}"
        _fail(streams.status, code, text)
    except BaseException as error:  # noqa: BLE001  the child must never run on as a second supervisor
        _fail(streams.status, CANNOT_EXECUTE, f"{_shown(argv[0])}: {error}")


def _shown(program: str) -> str:
    """Short enough that the reason after it is not cut off."""
    return program if len(program) <= _SHOWN_CHARS else f"{program[:_SHOWN_CHARS]}…"


def _execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606
    except OSError as error:
        # A script without `#!`: run it as every shell does.
        if error.errno == 8 and os.path.isfile(argv[0]):
            os.execve("/bin/sh", ["/bin/sh", *argv], env)  # noqa: S606
        raise


def _bound(cores: list[int]) -> None:
    """Cores, and first in line when the machine runs out of memory. Neither is worth failing a job for."""
    try:
        if cores:
            os.sched_setaffinity(0, cores)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def _fail(status: int, code: int, text: str) -> NoReturn:
    message = text[:2_000].encode(errors="replace")
    try:
        os.write(2, b"mintyard: " + message + b"\n")
    except OSError:
        pass
    try:
        os.write(status, b"x" + bytes([code]) + message)
    finally:
        os._exit(code)
