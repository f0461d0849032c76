"""The house rules that a machine can hold: purity of the domain, light clients, sizes, names, docstrings."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mintyard"
MODULES = sorted(PACKAGE.rglob("*.py"))
DOMAIN = sorted((PACKAGE / "domain").rglob("*.py"))
MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 70
LONG_FUNCTIONS: dict[str, int] = {
    "src/mintyard/app/read_model/migrations/versions/s0001_first.py:upgrade": 210,
    "src/mintyard/domain/scheduling/kernels.py:place_kernel": 90,
    "src/mintyard/domain/scheduling/kernels.py:place": 80,
    "src/mintyard/cli/commands/token.py:narrow": 80,
    "src/mintyard/domain/scheduling/queue_kernel.py:top": 85,
}
"""`path:function` of those that may be longer, with their bound: a kernel that Numba would not inline, a table."""

PURE_STANDARD_LIBRARY = {
    "__future__",
    "abc",
    "array",
    "base64",
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fnmatch",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "struct",
    "types",
    "typing",
}
"""What the domain may import of the standard library: nothing with a clock, a file, a socket, chance or a thread."""
IMPURE_CALLS = {
    "open",
    "print",
    "input",
    "exec",
    "eval",
    "compile",
    "__import__",
    "breakpoint",
    "id",
    "hash",
    "globals",
}
CLOCK_CALLS = {"now", "utcnow", "today"}
LOCAL_ZONE_CALLS = {"fromtimestamp": 2, "astimezone": 1}
"""Methods that fall back on the machine's zone with fewer arguments than these."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports_of(tree: ast.Module) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import at line {node.lineno}"
            found.append((node.lineno, node.module or ""))
    return found


def purity_faults(tree: ast.Module, in_scheduling: bool) -> list[str]:
    """Lines of a domain module that reach outside: imports beyond the short list, impure calls, `async`."""
    faults: list[str] = []
    allowed = (
        PURE_STANDARD_LIBRARY | {"msgspec", "numpy", "mintyard"} | ({"numba"} if in_scheduling else set())
    )
    for line, name in imports_of(tree):
        top = name.partition(".")[0]
        if top not in allowed or (top == "mintyard" and not name.startswith("mintyard.domain")):
            faults.append(f"{line}: imports {name}")
        if name.startswith("numpy.random"):
            faults.append(f"{line}: imports {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            faults.append(f"{node.lineno}: async")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            faults.append(f"{node.lineno}: calls {node.func.id}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in CLOCK_CALLS:
                faults.append(f"{node.lineno}: calls {node.func.attr}")
            if (
                node.func.attr in LOCAL_ZONE_CALLS
                and len(node.args) + len(node.keywords) < LOCAL_ZONE_CALLS[node.func.attr]
            ):
                faults.append(f"{node.lineno}: {node.func.attr} in the machine's time zone")
        if isinstance(node, ast.Attribute) and node.attr == "random":
            faults.append(f"{node.lineno}: a random generator")
    return faults


@pytest.mark.parametrize("path", DOMAIN, ids=name_of)
def test_domain_is_pure(path: Path) -> None:
    assert purity_faults(tree_of(path), "scheduling" in path.parts) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time", "import os.path", "from random import random", "import asyncio", "import logging",
        "import pathlib", "import socket", "import threading", "x = datetime.now()", "x = dt.datetime.now(UTC)",
        "date.today()",
        "datetime.fromtimestamp(1)", "x.astimezone()", "import numba",
        "import numpy.random", "x = np.random.rand()", "open('x')", "async def f(): pass", "hash('a')",
        "from mintyard.ports.store import Store", "import sqlalchemy",
    ],
)  # fmt: skip
def test_purity_check_sees(source: str) -> None:
    assert purity_faults(ast.parse(source), in_scheduling=False) != []


def test_only_scheduling_imports_numba() -> None:
    users = {
        name_of(path)
        for path in MODULES
        if any(name.partition(".")[0] == "numba" for _, name in imports_of(tree_of(path)))
    }
    assert all(user.startswith("src/mintyard/domain/scheduling/") for user in users), users


@pytest.mark.parametrize(
    "module",
    ["mintyard", "mintyard.sdk", "mintyard.cli", "mintyard.wire.jobfile", "mintyard.wire.batch_script"],
)
def test_client_stays_light(module: str) -> None:
    heavy = ["numpy", "numba", "litestar", "sqlalchemy", "uvicorn", "prometheus_client", "structlog"]
    code = f"import sys, {module}; print(*[name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=_environment()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src")}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_is_documented_and_short(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    empty_marker = path.name == "__init__.py" and not source.strip()
    assert empty_marker or ast.get_docstring(ast.parse(source)), "a module says what its room is for"
    assert len(source.splitlines()) <= MAX_MODULE_LINES


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            bound = LONG_FUNCTIONS.get(f"{name_of(path)}:{node.name}", MAX_FUNCTION_LINES)
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= bound, f"{node.name} has {length} lines"


def test_listed_exceptions_exist() -> None:
    for entry in LONG_FUNCTIONS:
        path, _, function = entry.partition(":")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), entry


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc", "base", "core"}
    paths = [
        path for folder in ("src", "tests", "bench", "scripts") for path in (ROOT / folder).rglob("*.py")
    ]
    assert [
        name_of(path) for path in paths if drawers & {path.stem, *path.parent.relative_to(ROOT).parts}
    ] == []


def test_package_has_an_init_everywhere() -> None:
    """A folder with modules but without `__init__` would be left out by import-linter."""
    missing = {name_of(path.parent) for path in MODULES if not (path.parent / "__init__.py").exists()}
    assert missing == set()


def test_entry_points_load() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for group, entries in project["entry-points"].items():
        for name, value in entries.items():
            assert EntryPoint(name, value, group).load() is not None


def test_locked_requirements_cover_the_project() -> None:
    """Each direct dependency is in the hashed list, at one version, with hashes and without a host."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hub = pyproject["project"]["dependencies"] + pyproject["project"]["optional-dependencies"]["hub"]
    for file, wanted in (("hub.txt", hub), ("dev.txt", hub + pyproject["dependency-groups"]["dev"])):
        text = (ROOT / "requirements" / file).read_text(encoding="utf-8")
        locked = set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
        names = {
            re.match(r"[A-Za-z0-9._-]+", item)[0].lower().replace("_", "-").replace(".", "-")
            for item in wanted
        }
        assert names <= locked, f"run `make lock`: {sorted(names - locked)}"
        assert "://" not in text
        assert text.count("--hash=sha256:") >= len(locked)


def test_nothing_committed_names_a_machine_or_registry() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    forbidden = re.compile(
        r"(?<![\w.])/(?:work|root)/(?:main|shared|venv)|pypi\.org|pythonhosted|\.\./shared"
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path.suffix in {".gz", ".png", ".woff2"} or path == Path(__file__) or not path.is_file():
            continue
        found = forbidden.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{name}: {found and found[0]}"
