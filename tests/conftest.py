"""For all tests: hypothesis profiles, and services that must not be skipped where they are promised."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Run in the background by a shell: what is ignored stays so in every child, and Ctrl-C could not be tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("dev", max_examples=100, deadline=None)
settings.register_profile(
    "ci", max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """With MINTYARD_REQUIRE_SERVICES a skipped service test is a failure: CI can't pass by not having the service."""
    report = yield
    needs_service = item.get_closest_marker("postgres") or item.get_closest_marker("service")
    if report.skipped and needs_service and os.environ.get("MINTYARD_REQUIRE_SERVICES"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and MINTYARD_REQUIRE_SERVICES is set"
    return report
