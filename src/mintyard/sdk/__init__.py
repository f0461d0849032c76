"""The client in Python (U3): `Hub` for plain code, `AsyncHub` for asyncio, the same methods and types in both.

    from mintyard.sdk import Hub

    with Hub() as hub:
        job = hub.submit(run="python train.py", gpus=1, time="30m")
        print(job.wait().state, *job.logs())

It sees wire types and credentials only; nothing of the server may enter, and names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mintyard.credentials import Context, CredentialStore, KeySet
    from mintyard.domain.errors import AnswerUnreadable, HubUnreachable, JobNotSucceeded, MintyardError
    from mintyard.domain.units import Unit
    from mintyard.sdk.address import Address
    from mintyard.sdk.aio.hub import AsyncHub
    from mintyard.sdk.aio.submitted import AsyncSubmitted
    from mintyard.sdk.offline import inspect, narrow, verify
    from mintyard.sdk.sync.hub import Hub
    from mintyard.sdk.sync.submitted import Submitted
    from mintyard.wire.jobs import Array, Dependency, Job
    from mintyard.wire.launch import Launch

_HOMES: Final[dict[str, str]] = {
    "Address": "mintyard.sdk.address",
    "AnswerUnreadable": "mintyard.domain.errors",
    "Array": "mintyard.wire.jobs",
    "AsyncHub": "mintyard.sdk.aio.hub",
    "AsyncSubmitted": "mintyard.sdk.aio.submitted",
    "Context": "mintyard.credentials",
    "CredentialStore": "mintyard.credentials",
    "Dependency": "mintyard.wire.jobs",
    "Hub": "mintyard.sdk.sync.hub",
    "HubUnreachable": "mintyard.domain.errors",
    "Job": "mintyard.wire.jobs",
    "JobNotSucceeded": "mintyard.domain.errors",
    "KeySet": "mintyard.credentials",
    "Launch": "mintyard.wire.launch",
    "MintyardError": "mintyard.domain.errors",
    "Submitted": "mintyard.sdk.sync.submitted",
    "Unit": "mintyard.domain.units",
    "inspect": "mintyard.sdk.offline",
    "narrow": "mintyard.sdk.offline",
    "verify": "mintyard.sdk.offline",
}

__all__ = [
    "Address",
    "AnswerUnreadable",
    "Array",
    "AsyncHub",
    "AsyncSubmitted",
    "Context",
    "CredentialStore",
    "Dependency",
    "Hub",
    "HubUnreachable",
    "Job",
    "JobNotSucceeded",
    "KeySet",
    "Launch",
    "MintyardError",
    "Submitted",
    "Unit",
    "inspect",
    "narrow",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
