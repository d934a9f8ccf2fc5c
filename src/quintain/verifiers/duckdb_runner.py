"""`query_runner` with duckdb loaded before a worker is forked: the import outlasts most queries.

A module of its own, because workers fork from one process a module.
"""

from __future__ import annotations

import duckdb

from quintain.verifiers import query_runner

VERSION: str = duckdb.__version__


def run_text(text: str) -> str:
    """See `query_runner.run_text`."""
    return query_runner.run_text(text)
