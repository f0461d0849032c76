"""`python -m mintyard.demo [--folder FOLDER] [--keep]`: exit status 0 when everything was as it must be."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from mintyard.demo.console import Console, DemoFailed
from mintyard.demo.hub import RunningHub
from mintyard.demo.story import tell


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mintyard.demo", description="The whole story on this machine."
    )
    parser.add_argument(
        "--folder", type=Path, help="a new or empty folder for everything (default: a temporary one)"
    )
    parser.add_argument("--port", type=int, default=8080, help="another one is taken when it is in use")
    parser.add_argument("--keep", action="store_true", help="leave the hub running at the end, until Ctrl-C")
    options = parser.parse_args(arguments)
    folder: Path = (options.folder or Path(tempfile.mkdtemp(prefix="mintyard-demo-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(folder)
    hub = RunningHub(folder, options.port)
    status = 1
    try:
        with hub:
            tell(console, hub)
            status = 0
            if options.keep:
                hub.wait(console)
    except DemoFailed as failed:
        console.failed(str(failed), hub.last_words())
    except KeyboardInterrupt:
        console.say("interrupted")
        status = status and 130
    console.farewell(hub, well=status == 0)
    return status


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
