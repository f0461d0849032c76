"""Trace readers: openb CSV, Standard Workload Format and Philly CSV. Found by entry point; nothing else imports them."""

from mintyard.adapters.traces.openb import read_nodes, read_openb
from mintyard.adapters.traces.philly import read_philly
from mintyard.adapters.traces.swf import read_swf

__all__ = ["read_nodes", "read_openb", "read_philly", "read_swf"]
