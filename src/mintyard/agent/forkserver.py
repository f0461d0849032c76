"""Fork server: the long-lived parent from which supervisors are forked, so that a start costs no new interpreter.

Started by the engine, detached from it, and gone by itself once nobody needs it. It takes orders from a Unix socket
whose folder and peer are this user's, forks, passes on hints of its supervisors (a line each: letter, key, text), and
is the subreaper that kills what a killed supervisor leaves behind. It keeps nothing: the state folder has the truth.

    S started   E ended   L claim lost   F claim failed   X disk refuses   (towards the engine)
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from typing import Any

from mintyard.agent import kernel, orphans, records
from mintyard.agent.cgroup import open_base, remove_empty
from mintyard.agent.supervisor import supervise

PROTOCOL = 1
_MAX_ORDER_BYTES = 8 * 1_024 * 1_024
_MAX_BACKLOG_BYTES = 4 * 1_024 * 1_024
_BURY_AGAIN_S = 1.0


def socket_path(state_handle: int) -> str:
    """The socket's path by way of the open state folder: sockets allow 107 bytes, state folders may be longer."""
    return f"/proc/self/fd/{state_handle}/agent.sock"


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.backlog = bytearray()


class ForkServer:
    """One per state folder; `serve` returns when it is idle for `idle_s` or was told to retire."""

    def __init__(self, state: str, idle_s: float, cgroup: str) -> None:
        self.state, self.idle_s, self.cgroup_choice = state, idle_s, cgroup
        self.selector = selectors.DefaultSelector()
        self.supervisors: dict[int, str] = {}
        self.unburied: set[str] = set()
        self.clients: dict[int, _Client] = {}
        self.listener: socket.socket | None = None
        self.lock = -1
        self.heard = bytearray()
        self.cgroup_base = ""

    def open(self) -> bool:
        """Take the lock and listen; False when another server has it."""
        records.prepare(self.state)
        self.state_handle = os.open(self.state, os.O_RDONLY | os.O_DIRECTORY)
        self.lock = os.open(os.path.join(self.state, "agent.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.cgroup_base = open_base(self.cgroup_choice, f"mintyard-{os.stat(self.state).st_ino}")
        path = socket_path(self.state_handle)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        os.chmod(path, 0o600)
        self.listener.listen(64)
        self.listener.setblocking(False)
        self.notices_r, self.notices_w = os.pipe()
        self.wake_r, self.wake_w = os.pipe()
        # Nobody waits for a hint: one lost is found in the folder.
        for handle in (self.notices_r, self.notices_w, self.wake_r, self.wake_w):
            os.set_blocking(handle, False)
        kernel.become_subreaper()
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.retire())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for handle in (self.listener.fileno(), self.notices_r, self.wake_r):
            self.selector.register(handle, selectors.EVENT_READ)
        return True

    def serve(self) -> None:
        gc.collect()
        gc.freeze()
        idle_since = time.monotonic()
        while True:
            busy = bool(self.supervisors or self.unburied or self.clients)
            if busy:
                idle_since = time.monotonic()
            elif self.listener is None or time.monotonic() - idle_since >= self.idle_s:
                break
            wait_s = _BURY_AGAIN_S if self.unburied else 60.0 if busy else max(0.01, self.idle_s / 2)
            for found, events in self.selector.select(wait_s):
                self._handle(found.fd, events)
            self._reap()
            self.unburied = {key for key in self.unburied if not self._bury(key)}
        self.retire()
        if self.cgroup_base:
            remove_empty(self.cgroup_base)

    def retire(self) -> None:
        """Stop listening and let the next server in; supervisors at work are still waited for."""
        if self.listener is None:
            return
        self.selector.unregister(self.listener.fileno())
        try:
            os.unlink(socket_path(self.state_handle))
        except FileNotFoundError:
            pass
        self.listener.close()
        self.listener = None
        os.close(self.lock)

    def _handle(self, handle: int, events: int) -> None:
        if self.listener is not None and handle == self.listener.fileno():
            self._accept()
        elif handle == self.wake_r:
            os.read(handle, 4_096)
        elif handle == self.notices_r:
            self.heard += os.read(handle, 65_536)
            end = self.heard.rfind(b"\n") + 1
            lines, self.heard = bytes(self.heard[:end]), self.heard[end:]
            self._broadcast(lines)
        elif handle in self.clients:
            client = self.clients[handle]
            if events & selectors.EVENT_WRITE:
                self._send(client, b"")
            if events & selectors.EVENT_READ and handle in self.clients:
                self._receive(client)

    def _broadcast(self, lines: bytes) -> None:
        for client in list(self.clients.values()):
            self._send(client, lines)

    def _accept(self) -> None:
        assert self.listener is not None
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if peer[1] != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        client = _Client(connection)
        self.clients[connection.fileno()] = client
        self.selector.register(connection.fileno(), selectors.EVENT_READ)
        hello = {"protocol": PROTOCOL, "pid": os.getpid(), "cgroup": self.cgroup_base}
        self._send(client, b"H " + json.dumps(hello).encode() + b"\n")

    def _drop(self, client: _Client) -> None:
        if self.clients.pop(client.connection.fileno(), None):
            self.selector.unregister(client.connection.fileno())
        client.connection.close()

    def _send(self, client: _Client, data: bytes) -> None:
        """Never waits. One that doesn't read is dropped: it connects again and looks at the folder."""
        client.backlog += data
        try:
            while client.backlog:
                del client.backlog[: client.connection.send(client.backlog)]
        except BlockingIOError:
            if len(client.backlog) > _MAX_BACKLOG_BYTES:
                self._drop(client)
                return
        except OSError:
            self._drop(client)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.backlog else 0)
        self.selector.modify(client.connection.fileno(), events)

    def _receive(self, client: _Client) -> None:
        try:
            data = client.connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.received += data
        if not data or len(client.received) > _MAX_ORDER_BYTES:
            self._drop(client)
            return
        end = client.received.rfind(b"\n") + 1
        lines, client.received = bytes(client.received[:end]).splitlines(), client.received[end:]
        for line in lines:
            try:
                order = json.loads(line)
                if order["op"] == "start":
                    self._fork(order["spec"])
                elif order["op"] == "retire":
                    self.retire()
            except (ValueError, KeyError, TypeError):
                self._drop(client)
                return

    def _fork(self, spec: dict[str, Any]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._broadcast(f"F {spec['key']} no process: {error.strerror}\n".encode())
            return
        if pid:
            self.supervisors[pid] = spec["key"]
            return
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            self._close_inherited()
            status = supervise(self.state, spec, self.cgroup_base, self.notices_w)
        finally:
            os._exit(status)

    def _close_inherited(self) -> None:
        self.selector.close()
        for client in self.clients.values():
            client.connection.close()
        if self.listener is not None:
            self.listener.close()
            os.close(self.lock)
        for handle in (self.notices_r, self.wake_r, self.wake_w):
            os.close(handle)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            key = self.supervisors.pop(pid, None)
            if key is not None and status:
                self.unburied.add(key)

    def _bury(self, key: str) -> bool:
        """A supervisor died badly: its orphans are now children of this process, whatever they did to hide."""
        for pid in kernel.children(os.getpid()):
            if pid not in self.supervisors:
                kernel.signal_all([pid, *kernel.descendants(pid)], signal.SIGKILL)
        try:
            buried = orphans.bury(self.state, key, patience_s=0.2)
        except OSError:
            return False
        strangers = [pid for pid in kernel.children(os.getpid()) if pid not in self.supervisors]
        if buried and not any(kernel.start_time(pid) for pid in strangers):
            self._broadcast(f"E {key} \n".encode())
            return True
        return False


def main(state: str, idle_s: str, cgroup: str) -> None:
    """Detach and serve. Standard streams go to the state folder's `agent.log`."""
    records.prepare(state)
    log = os.open(os.path.join(state, "agent.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir("/")
    os.umask(0o077)
    server = ForkServer(state, float(idle_s), cgroup)
    if server.open():
        server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:4])
