"""The catalogue of mutants keeps up with the source: each still occurs, once or more, where it says."""

from __future__ import annotations

import pytest
from tests.mutants.__main__ import source_of
from tests.mutants.catalogue import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[str(number) for number in range(len(MUTANTS))])
def test_it_occurs(mutant: Mutant) -> None:
    assert mutant.old in source_of(mutant.module)
    assert mutant.old != mutant.new
