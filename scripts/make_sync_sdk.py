"""Make the synchronous client (`sdk/sync`) from the asynchronous one (`sdk/aio`): `python scripts/make_sync_sdk.py`.

The same code without `async` and `await`; a test holds that the two agree.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

SDK: Final = Path(__file__).parents[1] / "src" / "mintyard" / "sdk"
NAMES: Final = {
    "AsyncGenerator": "Generator",
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "aclose": "close",
    "aclosing": "closing",
    "aio": "sync",
    "aiter_bytes": "iter_bytes",
    "asyncio": "time",
}
_OWN: Final = re.compile(r"\bAsync([A-Z]\w+)\b")
_NAME: Final = re.compile(r"\b(" + "|".join(NAMES) + r")\b")
_LEAD: Final = re.compile(r"\basync (def|for|with)\b")
PACKAGE_DOC: Final = '''"""The synchronous client, made from `aio` by `scripts/make_sync_sdk.py`: change it there."""
'''


def synchronous(source: str) -> str:
    """`source` without its asynchrony, not formatted yet."""
    text = _LEAD.sub(r"\1", source).replace("await ", "")
    text = _NAME.sub(lambda match: NAMES[match[1]], text)
    text = _OWN.sub(r"\1", text)
    text = text.replace("Generator[ServerEvent, None]", "Generator[ServerEvent, None, None]")
    # `time` stands for `asyncio`'s sleep; where both were imported, once is enough.
    return text.replace("import time\nimport ssl\nimport time\n", "import ssl\nimport time\n").replace(
        "import time\nimport time\n", "import time\n"
    )


def make(folder: Path) -> None:
    """Write the synchronous modules into `folder`."""
    for path in sorted((SDK / "aio").glob("*.py")):
        made = PACKAGE_DOC if path.name == "__init__.py" else synchronous(path.read_text(encoding="utf-8"))
        (folder / path.name).write_text(made, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff"]
    settings = ["--config", str(SDK.parents[2] / "pyproject.toml")]
    fixes = ["--fix", "--unsafe-fixes", "--select", "I,UP028,C416"]
    subprocess.run([*ruff, "check", "-q", *settings, *fixes, str(folder)], check=True)
    subprocess.run([*ruff, "format", "-q", *settings, str(folder)], check=True)


if __name__ == "__main__":
    make(SDK / "sync")
