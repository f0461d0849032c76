"""The library's Datalog as judge of a token and a request, in a process of its own that can be killed.

Run as a program it reads one JSON request a line and answers `allow`, `deny` or `error` and a reason.
"""

import json
import os
import select
import subprocess
import sys
from datetime import timedelta

ANSWER_WITHIN_S = 20


def judge(raw: bytes, public: str, facts: str) -> str:
    import biscuit_auth

    key = biscuit_auth.PublicKey.from_bytes(bytes.fromhex(public), biscuit_auth.Algorithm.Ed25519)
    token = biscuit_auth.Biscuit.from_bytes(raw, key)
    builder = biscuit_auth.AuthorizerBuilder(facts + "\nallow if true;")
    limits = builder.limits()
    limits.max_time, limits.max_facts, limits.max_iterations = timedelta(seconds=10), 100_000, 10_000
    builder.set_limits(limits)
    try:
        builder.build(token).authorize()
    except biscuit_auth.AuthorizationError as error:
        return "deny" if "checks failed" in str(error) else f"error {error}"
    return "allow"


class Oracle:
    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, raw: bytes, public: str, facts: str) -> str:
        """TimeoutError when the judge did not answer in time; it is killed then."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([raw.hex(), public, facts]) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], ANSWER_WITHIN_S)[0]:
            self.close()
            raise TimeoutError
        return process.stdout.readline().strip()

    def close(self) -> None:
        process = self._process
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


if __name__ == "__main__":
    for line in sys.stdin:
        raw, public, facts = json.loads(line)
        print(judge(bytes.fromhex(raw), public, facts).replace("\n", " "), flush=True)
