"""Conformance suites: what every implementation of a contract must do, as a function to call.

Each `check_*` raises `AssertionError` naming the first promise that is broken.
"""

from __future__ import annotations
