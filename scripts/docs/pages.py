"""All pages of the reference: name of the file to its text."""

from __future__ import annotations

from scripts.docs import command_line, http, job_files, operation, state_machine
from scripts.docs.markdown import page, table

_INDEX = (
    ("command-line.md", "Command line", "every command, argument and flag of `mintyard`"),
    ("rest.md", "REST", "every operation of `/api/v1`, its types and errors"),
    ("job-files.md", "Job files", "the fields of a job in YAML"),
    (
        "batch-scripts.md",
        "Batch scripts",
        "which flags of sbatch are honoured, and which are named as unsupported",
    ),
    ("errors.md", "Errors", "code, HTTP status, exit status, message and remedy"),
    ("configuration.md", "Configuration", "settings of a hub in file, environment and flags"),
    ("metrics.md", "Metrics", "what `/metrics` shows"),
    ("life-cycles.md", "Life cycles", "states and moves of accounts, tokens, grants, holds, jobs and nodes"),
    ("commands.md", "Commands of the core", "what may be asked of it"),
    ("events.md", "Events of the core", "what the journal records"),
    ("limits.md", "Limits", "every bound of the system"),
)


def pages() -> dict[str, str]:
    """Every file of docs/reference."""
    rows = [(f"[{title}]({name})", about) for name, title, about in _INDEX]
    made = {"README.md": page("Reference", "Made from the code.", table(("page", "what is in it"), rows))}
    made |= (
        state_machine.pages() | http.pages() | job_files.pages() | operation.pages() | command_line.pages()
    )
    unlisted = (
        {name for name in made if name.endswith(".md")} ^ {name for name, _, _ in _INDEX} ^ {"README.md"}
    )
    if unlisted:
        raise ValueError(f"pages and their index differ: {sorted(unlisted)}")
    return made
