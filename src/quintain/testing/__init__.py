"""Conformance suites: what every implementation of a contract must do, as a function to call.

Each `check_*` raises `AssertionError` naming the first promise that is broken.
"""

from quintain.testing.environments import check_environment
from quintain.testing.policies import check_policy
from quintain.testing.sandboxes import check_capabilities, check_sandbox
from quintain.testing.verifiers import VerifierReport, check_verifier

__all__ = [
    "VerifierReport",
    "check_environment",
    "check_policy",
    "check_capabilities",
    "check_sandbox",
    "check_verifier",
]
