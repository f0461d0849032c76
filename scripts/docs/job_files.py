"""Pages of what people submit: fields of job files, flags of batch scripts.

Each field's example is read by the reader of job files while the page is made, so an example that doesn't work is an error.
"""

from __future__ import annotations

import msgspec
from scripts.docs.markdown import code, page, table

from mintyard.wire import batch_flags
from mintyard.wire.jobfile import FIELDS, parse_jobfile
from mintyard.wire.jobs import Job

_NOW_NS = 1_767_225_600_000_000_000
_ABOUT: dict[str, tuple[str, str]] = {
    "name": ("name: train", "Shown in lists."),
    "ref": ("ref: train", "Names the job to others in the file; under `jobs:` the key or a unique name is taken."),
    "run": ("run: python train.py", "The command: a line or several for `/bin/sh`, or a list of words run as they are."),
    "script": ('script: "#!/bin/bash\\necho done\\n"', "A whole script instead of `run`."),
    "args": ("args: [--epochs, 10]", "Arguments of the script."),
    "env": ("env: {EPOCHS: 10}", "Variables; those that the hub sets win."),
    "workdir": ("workdir: /srv/project", "Where it runs; a fresh folder for each job when left out."),
    "stdout": ("stdout: out-%j.txt", "File in the working folder, with sbatch's patterns; kept by the hub when left out."),
    "stderr": ("stderr: err-%j.txt", "As `stdout`."),
    "slurm_environment": ("slurm_environment: true", "Sets `SLURM_*` beside `MINTYARD_*`."),
    "gpus": ("gpus: 2", "GPUs of a member: a number, a fraction (`0.5`), or with a model (`A100:2`)."),
    "gpu_models": ("gpus: 1\ngpu_models: [A100, H100]", "Any of these models."),
    "labels": ("labels: [nvlink]", "Labels that a node must have."),
    "cpus": ("cpus: 1.5", "Cores of a member; `500m` is half a core."),
    "memory": ("memory: 4GB", "Memory of a member."),
    "storage": ("storage: 1TB", "Storage that is paid for."),
    "members": ("members: 4", "Members of a gang: all start together or none."),
    "nodes": ("nodes: 4", "The same as `members`."),
    "time": ("time: 30m", "Time limit: `90s`, `30m`, `2h`, `1d`, or as sbatch writes it, `1-12:00:00`."),
    "grace": ("grace: 10s", "Between TERM and KILL."),
    "priority": ("priority: 200", "Higher starts sooner; waiting raises it."),
    "queue": ("queue: default", "The queue."),
    "retries": ("retries: 2", "How often it is started again after a failure of its own."),
    "budget": ('budget: "2.50"', "The most it may cost; refused when time limit times prices is more."),
    "begin": ("begin: now+1hour", "Not before this instant."),
    "array": ("array: 0-9%2", "One task for each index, at most two at once; each sees `MINTYARD_ARRAY_INDEX`."),
    "needs": ("needs: [12, 13]", "Jobs that must succeed first, by number or ref; also `afterany:12`."),
    "after": ("after: 12", "The same as `needs`."),
    "inputs": ("inputs: [data.csv]", "Files it reads: it waits for the job in the same request that writes them."),
    "outputs": ("outputs: [model.npz]", "Files it writes."),
    "hold": ("hold: true", "Submitted held; `mintyard job release` lets it compete."),
}  # fmt: skip


def pages() -> dict[str, str]:
    return {"job-files.md": _job_files(), "batch-scripts.md": _batch_scripts()}


def _job_files() -> str:
    if _ABOUT.keys() != FIELDS.keys():
        raise ValueError(
            f"fields without a description, or the reverse: {sorted(_ABOUT.keys() ^ FIELDS.keys())}"
        )
    rows = []
    for name, (example, about) in _ABOUT.items():
        rows.append((code(name), code(example.replace("\n", "; ")), _meaning(name, example), about))
    text = "jobs:\n  prepare:\n    run: python prepare.py\n    outputs: [data.npz]\n  fit:\n    run: python fit.py\n"
    text += "    array: 0-3\n    inputs: [data.npz]\ndefaults:\n  time: 5m\n"
    assert len(parse_jobfile(text, _NOW_NS)) == 2
    return page(
        "Job files",
        "One job, or several under `jobs:` (a list, or a map from ref to job) with `defaults:` for all of them. What a "
        "field is read as is shown in the names of the REST type [Job](rest.md#job).",
        table(("field", "example", "read as", "about"), rows),
        "Several jobs, with an edge that follows from the file that one writes and the other reads:",
        f"```yaml\n{text}```",
    )


def _meaning(name: str, example: str) -> str:
    """What the example sets, as the reader has it."""
    body = example if name in ("run", "script") else f"run: 'true'\n{example}"
    job = parse_jobfile(body, _NOW_NS)[0]
    plain = msgspec.to_builtins(job)
    launch = plain.pop("launch")
    if name not in ("run", "script"):
        launch.pop("script", None)
    known = {field.name: field.default for field in msgspec.structs.fields(Job)}
    changed = {key: value for key, value in plain.items() if value != known.get(key)}
    changed |= {f"launch.{key}": value for key, value in launch.items()}
    shown = ", ".join(f"{key}={msgspec.json.encode(value).decode()}" for key, value in changed.items())
    return code(shown) if shown else "the default"


def _batch_scripts() -> str:
    def listed(flags: dict[str, str]) -> str:
        return ", ".join(
            f"`--{name}`" + (f" (`-{letter}`)" if letter else "") for name, letter in flags.items()
        )

    return page(
        "Batch scripts",
        "`mintyard job submit script.sh` reads the `#SBATCH` lines before the first command as sbatch does, and the script "
        "stays as it is; the same flags may be given on the command line, where they win.",
        "## Honoured",
        listed(batch_flags.SUPPORTED),
        listed(batch_flags.SUPPORTED_SWITCHES),
        "File names take `%j %A %a %x %N %u %%`. `SLURM_*` variables are set.",
        "## Known and named as unsupported",
        "Nothing is dropped in silence: these are reported on submitting.",
        listed(batch_flags.OTHERS),
        listed(batch_flags.OTHER_SWITCHES),
    )
