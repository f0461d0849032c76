"""The projector beside a run, in a process of its own as in production: `python -m bench.throughput.projector STORE READ FILE`.

Writes its lag to FILE about once a second."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path

from mintyard.app.journal_store import open_store
from mintyard.app.projector import Lag, run_projector
from mintyard.app.read_model.database import open_read_model


def main(store_url: str, read_url: str, file: Path) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    store = open_store(store_url)
    model = open_read_model(read_url, migrate=True)

    def told(lag: Lag) -> None:
        new = file.with_suffix(".new")
        new.write_text(
            json.dumps({"records": lag.records, "age_ms": lag.age_ms, "cpu_s": time.process_time()})
        )
        new.replace(file)

    run_projector(store, model, stop, told)
    model.close()
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
