"""Diagrams of life cycles, drawn from `domain.lifecycle`: Mermaid text for forges, and an SVG of our own.

The SVG is a ladder: each state is a column, each arrow a row, so that nothing ever overlaps however the table grows. States
that have the same moves (three and more) are drawn once, as a bar over their columns.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from mintyard.domain.lifecycle import LifeCycle

SHARED_MOVES = 3
_COLUMN, _ROW, _TOP, _MARGIN, _BOX = 112, 30, 64, 16, 26
_STYLE = (
    "text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#1f2933}"
    ".state{fill:#e8eef7;stroke:#4a6fa5;stroke-width:1.2}.end{fill:#eceff1;stroke:#78909c;stroke-width:2.4}"
    ".line{stroke:#cfd8e3;stroke-width:1}.arrow{stroke:#4a6fa5;stroke-width:1.5;fill:none}"
    ".bar{stroke:#4a6fa5;stroke-width:4;stroke-linecap:round}.dot{fill:#4a6fa5}"
    ".halo{stroke:#fff;stroke-width:4px;stroke-linejoin:round}"
)
Arrow = tuple[tuple[str, ...], str, str]
"""(sources, target, triggers)."""


def shared_moves(cycle: LifeCycle) -> tuple[tuple[str, ...], set[tuple[str, str]]]:
    """States that share most moves, and those moves as (trigger, target); nothing when they are fewer than three."""
    moves = {
        state: {(by, to) for (source, by), to in cycle.moves.items() if source == state}
        for state in cycle.states
    }
    best: tuple[tuple[str, ...], set[tuple[str, str]]] = ((), set())
    for state in cycle.states:
        for other in cycle.states:
            common = moves[state] & moves[other] if state < other else set()
            if len(common) >= SHARED_MOVES:
                members = tuple(name for name in cycle.states if common <= moves[name])
                if len(members) * len(common) > len(best[0]) * len(best[1]):
                    best = (members, common)
    return best


def arrows(cycle: LifeCycle) -> list[Arrow]:
    """What to draw: the shared moves once, all others by source and target with their triggers joined."""
    group, common = shared_moves(cycle)
    joined: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for (source, by), to in cycle.moves.items():
        sources = group if source in group and (by, to) in common else (source,)
        triggers = joined.setdefault((sources, to), [])
        if by not in triggers:
            triggers.append(by)
    return [(sources, to, ", ".join(triggers)) for (sources, to), triggers in joined.items()]


def mermaid(cycle: LifeCycle) -> str:
    group, _ = shared_moves(cycle)
    lines = ["```mermaid", "stateDiagram-v2", f"  [*] --> {cycle.initial}"]
    name = "_or_".join(group)
    drawn = arrows(cycle)
    if group:
        lines.append(f'  state "{", ".join(group)}" as {name} {{')
        lines += [f"    {state}" for state in group]
        lines += [
            f"    {s[0]} --> {to} : {by}"
            for s, to, by in drawn
            if len(s) == 1 and s[0] in group and to in group
        ]
        lines.append("  }")
    for sources, to, by in drawn:
        if len(sources) == 1 and sources[0] in group and to in group:
            continue
        lines.append(f"  {name if len(sources) > 1 else sources[0]} --> {to} : {by}")
    lines += [f"  {state} --> [*]" for state in cycle.terminal]
    return "\n".join([*lines, "```"])


def ladder(cycle: LifeCycle) -> str:
    """The SVG; its size follows from the table."""
    states = [state for state in cycle.states if state not in cycle.terminal] + cycle.terminal
    at = {state: _MARGIN + _COLUMN * number + _COLUMN // 2 for number, state in enumerate(states)}
    drawn = arrows(cycle)
    width = 2 * _MARGIN + _COLUMN * len(states)
    height = _TOP + _ROW * (len(drawn) + 1)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img"><title>Life cycle of: {escape(cycle.what)}</title><style>{_STYLE}</style>'
        ),
        (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" class="dot"/></marker></defs>'
        ),
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for state in states:
        parts += _column(
            state, at[state], height, ended=state in cycle.terminal, first=state == cycle.initial
        )
    for row, arrow in enumerate(drawn):
        parts += _arrow(arrow, at, _TOP + _ROW * row + _ROW)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _column(state: str, x: int, height: int, *, ended: bool, first: bool) -> list[str]:
    half = _COLUMN // 2 - 6
    parts = [
        f'<line class="line" x1="{x}" y1="{_TOP - 12}" x2="{x}" y2="{height - 8}"/>',
        f'<rect class="{"end" if ended else "state"}" x="{x - half}" y="20" width="{2 * half}" height="{_BOX}" rx="6"/>',
        f'<text x="{x}" y="37" text-anchor="middle">{escape(state)}</text>',
    ]
    if first:
        parts.append(f'<circle class="dot" cx="{x}" cy="8" r="5"/>')
    return parts


def _arrow(arrow: Arrow, at: dict[str, int], y: int) -> list[str]:
    sources, target, label = arrow
    end = at[target]
    columns = [at[source] for source in sources]
    parts = [f'<circle class="dot" cx="{x}" cy="{y}" r="3.5"/>' for x in columns]
    if len(columns) > 1:
        parts.append(f'<line class="bar" x1="{min(columns)}" y1="{y}" x2="{max(columns)}" y2="{y}"/>')
    start = max((x for x in columns if x <= end), default=min(columns)) if len(columns) > 1 else columns[0]
    if len(columns) > 1 and end > max(columns):
        start = max(columns)
    if start == end:
        parts.append(f'<path class="arrow" marker-end="url(#head)" d="M{end} {y - 6}h26v12H{end + 4}"/>')
        middle, anchor = end + 32, "start"
    else:
        parts.append(
            f'<path class="arrow" marker-end="url(#head)" d="M{start} {y}H{end + (4 if end < start else -4)}"/>'
        )
        middle, anchor = (start + end) // 2, "middle"
    height = y + 4 if start == end else y - 5
    text = f'x="{middle}" y="{height}" text-anchor="{anchor}">{escape(label)}</text>'
    return [*parts, f'<text class="halo" {text}', f"<text {text}"]
