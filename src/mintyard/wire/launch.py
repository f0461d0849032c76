"""Launch: what an attempt runs, as the engine reads it from a job's payload."""

from __future__ import annotations

import msgspec


class Launch(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Exactly one of `argv` (executed as it is) and `script` (a file with a `#!` line, or run by /bin/sh) is given.

    `stdout` and `stderr` are file names relative to the working folder with sbatch's patterns (%j job, %A array job,
    %a array index, %x name, %N node, %% percent); empty: kept by the hub. `workdir` empty: a fresh folder per job.
    `slurm_environment` sets the SLURM_* names as well as MINTYARD_*.
    """

    argv: tuple[str, ...] = ()
    script: str = ""
    arguments: tuple[str, ...] = ()
    env: dict[str, str] = {}
    workdir: str = ""
    stdout: str = ""
    stderr: str = ""
    slurm_environment: bool = False


def encode_launch(launch: Launch) -> bytes:
    return msgspec.msgpack.encode(launch)


def decode_launch(payload: bytes) -> Launch:
    """Raises `msgspec.ValidationError` or `msgspec.DecodeError` for anything else."""
    return msgspec.msgpack.decode(payload, type=Launch)
