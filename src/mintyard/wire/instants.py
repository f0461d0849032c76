"""When a job may begin, as sbatch's `--begin` and job files write it; the caller hands in its clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from mintyard.domain.units import NS_PER_S
from mintyard.wire.jobs import MAX_INSTANT_NS
from mintyard.wire.quantities import refuse

_FROM_NOW: Final = re.compile(r"now\+([0-9]{1,9})(seconds?|minutes?|hours?|days?|weeks?)?")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_ALLOWED: Final = "write now+1hour, 2030-01-31T12:00:00 (local time) or 2030-01-31T12:00:00Z"


def parse_begin(text: str, now_ns: int, field: str = "begin") -> str:
    """`Job.begin_at` (RFC 3339 in UTC; empty for `now`) for `now`, `now+90` (seconds), `now+1hour`, a date with or
    without time; without zone it is local time. Errors: `InvalidSpec`."""
    if text == "now":
        return ""
    later = _FROM_NOW.fullmatch(text)
    try:
        if later:
            moment = datetime.fromtimestamp(now_ns // NS_PER_S, UTC) + timedelta(
                seconds=int(later[1]) * _UNIT_S[(later[2] or "s")[0]]
            )
        else:
            moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        refuse(field, text, _ALLOWED)
    if not 0 <= moment.timestamp() <= MAX_INSTANT_NS // NS_PER_S:
        refuse(field, text, "it lies outside 1970 to 2262")
    return moment.isoformat().replace("+00:00", "Z")
