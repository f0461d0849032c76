"""The committed reference is what the code says, diagrams hold what the tables hold, links in the pages lead somewhere."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from scripts.docs.__main__ import FOLDER, differences, main, write
from scripts.docs.ladders import arrows, ladder, mermaid, shared_moves

from mintyard.domain import lifecycle
from mintyard.domain.errors import REGISTRY
from mintyard.domain.lifecycle import LifeCycle

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])
_LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


def test_the_committed_reference_is_up_to_date() -> None:
    assert "\n".join(differences(FOLDER)) == "", "run `make docs`"


def test_a_changed_and_a_superfluous_page_are_found_and_mended(tmp_path: Path) -> None:
    assert write(tmp_path) > 10
    assert main(["--check", "--folder", str(tmp_path)]) == 0
    (tmp_path / "errors.md").write_text("nothing\n")
    (tmp_path / "of-old.md").write_text("nothing\n")
    found = differences(tmp_path)
    assert "of-old.md is made by nothing any more" in found
    assert "--- committed/errors.md" in found
    assert main(["--check", "--folder", str(tmp_path)]) == 1
    assert main(["--folder", str(tmp_path)]) == 0
    assert differences(tmp_path) == []


@pytest.mark.parametrize("cycle", lifecycle.ALL, ids=lambda cycle: cycle.what)
def test_drawings_have_every_move_and_no_other(cycle: LifeCycle) -> None:
    drawn = {
        ((source, trigger), target)
        for sources, target, triggers in arrows(cycle)
        for source in sources
        for trigger in triggers.split(", ")
    }
    assert drawn == set(cycle.moves.items())
    tree = ElementTree.fromstring(ladder(cycle))
    texts = {text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")}
    assert texts >= set(cycle.states) | {triggers for _, _, triggers in arrows(cycle)}
    assert all(state in mermaid(cycle) for state in cycle.states)


def test_states_with_the_same_moves_are_drawn_once() -> None:
    group, moves = shared_moves(lifecycle.JOB)
    assert group == ("starting", "running", "stopping")
    assert ("succeed", "succeeded") in moves
    assert shared_moves(lifecycle.GRANT) == ((), set())


def test_every_error_is_in_the_reference() -> None:
    text = (FOLDER / "errors.md").read_text()
    assert [code for code in REGISTRY if f"`{code}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    missing = [
        target
        for target, _ in _LINK.findall(page.read_text(encoding="utf-8"))
        if target and "://" not in target and not (page.parent / target).exists()
    ]
    assert missing == []
