"""Connection of the local engine to its fork server: starts it when there is none, sends orders, hears hints.

Only the wire between two processes of one user; what the hints mean is the engine's business.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import mintyard
from mintyard.adapters.engines.environment import inherited
from mintyard.agent.forkserver import PROTOCOL, socket_path
from mintyard.domain.errors import EngineUnavailable

_PROGRAM: Final = (
    "import os, sys\n"
    "if os.fork(): os._exit(0)\n"  # the engine waits for this one; the server is init's child, not the hub's
    "sys.path.insert(0, sys.argv[1])\n"
    "from mintyard.agent.forkserver import main\n"
    "main(*sys.argv[2:5])\n"
)
_PATIENCE_S: Final = 15.0


class Hint:
    """One line of the fork server: `letter` as in its docstring, the attempt's `key`, and a text."""

    __slots__ = ("key", "letter", "text")

    def __init__(self, letter: str, key: str, text: str) -> None:
        self.letter, self.key, self.text = letter, key, text


class AgentConnection:
    """One connection. Not reused after an error: the engine opens another."""

    def __init__(self, channel: socket.socket, hello: Mapping[str, Any], rest: bytes) -> None:
        self.channel, self.hello = channel, hello
        self.received = bytearray(rest)
        self.broken = False
        self._sending = threading.Lock()
        # Blocking with a bound on sending only: a Python timeout would make `hints` wait as well.
        channel.settimeout(None)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_PATIENCE_S), 0))

    def fileno(self) -> int:
        return self.channel.fileno()

    def send(self, orders: list[dict[str, Any]]) -> None:
        """Raises OSError when the server is gone; the orders may or may not have arrived."""
        data = b"".join(json.dumps(order).encode() + b"\n" for order in orders)
        with self._sending:
            self.channel.sendall(data)

    def hints(self) -> list[Hint]:
        """What has arrived, without waiting. Sets `broken` at end of file."""
        try:
            while True:
                data = self.channel.recv(1 << 16, socket.MSG_DONTWAIT)
                if not data:
                    self.broken = True
                    break
                self.received += data
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True
        end = self.received.rfind(b"\n") + 1
        lines, self.received = bytes(self.received[:end]).splitlines(), self.received[end:]
        parts = [(line.decode(errors="replace") + "  ").split(" ", 2) for line in lines]
        return [Hint(letter, key, text.strip()) for letter, key, text in parts]

    def close(self) -> None:
        self.channel.close()


def connect(state: str, state_handle: int, idle_s: float, cgroup: str) -> AgentConnection:
    """Connect to the state folder's fork server, starting it if need be; one of another protocol is retired first.

    Raises `EngineUnavailable` when none answers within 15 s."""
    deadline = time.monotonic() + _PATIENCE_S
    started_at = 0.0
    while True:
        try:
            connection = _attempt(state_handle)
            if connection.hello.get("protocol") == PROTOCOL:
                return connection
            connection.send([{"op": "retire"}])
            connection.close()
            why = "a fork server of another version does not retire"
        except (OSError, ValueError) as error:
            why = f"its fork server does not answer: {error}"
            if time.monotonic() - started_at > 2.0:
                _start_server(state, idle_s, cgroup)
                started_at = time.monotonic()
        if time.monotonic() > deadline:
            raise EngineUnavailable(engine="local", why=why)
        time.sleep(0.005)


def connect_to_running(state_handle: int) -> AgentConnection | None:
    """A connection when a fork server of this protocol is there already; starts none."""
    try:
        connection = _attempt(state_handle)
    except (OSError, ValueError):
        return None
    if connection.hello.get("protocol") == PROTOCOL:
        return connection
    connection.close()
    return None


def _attempt(state_handle: int) -> AgentConnection:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(2.0)
        channel.connect(socket_path(state_handle))
        received = b""
        while b"\n" not in received:
            data = channel.recv(4_096)
            if not data:
                raise ConnectionError("closed at hello")
            received += data
        line, _, rest = received.partition(b"\n")
        return AgentConnection(channel, json.loads(line[2:]), rest)
    except BaseException:
        channel.close()
        raise


def _start_server(state: str, idle_s: float, cgroup: str) -> None:
    root = os.path.dirname(os.path.dirname(os.path.abspath(mintyard.__file__)))
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, root, state, str(idle_s), cgroup]
    try:
        subprocess.run(
            command,
            env=inherited(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineUnavailable(engine="local", why=f"its fork server can't be started: {error}") from error
