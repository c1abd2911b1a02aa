"""The reservation of a context: a late cancellation must not hit who comes next."""

from __future__ import annotations

import pytest

from pyllama_turbo import errors
from pyllama_turbo._claim import Claim


def test_a_late_interruption_does_not_reach_the_next_user() -> None:
    claim, flags = Claim(), []
    first, second = object(), object()
    claim.take(first)
    claim.interrupt(first, flags.append)
    claim.give_back(first, flags.append)
    claim.take(second)
    claim.interrupt(first, flags.append)  # the generation it was meant for is over
    assert flags == [1, 0]
    claim.interrupt(None, flags.append)
    assert flags == [1, 0, 1]


def test_one_user_at_a_time() -> None:
    claim, first = Claim(), object()
    claim.take(first)
    claim.take(first)
    with pytest.raises(errors.BusyError):
        claim.take(object())
    claim.give_back(object(), lambda value: pytest.fail("not the user's"))
    assert claim.user is first
