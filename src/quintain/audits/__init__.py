"""Audits: a verifier is attacked and measured before it is trusted.

::

    report = q.audit(environment)
    print(report)
    report.problems()      # why it should not train anything; empty when it may
"""

from typing import Any

from quintain.audits.findings import Finding
from quintain.audits.measure import aaudit
from quintain.audits.report import Report
from quintain.audits.submissions import Aim, Submission
from quintain.protocols import Environment
from quintain.rollouts import run_blocking

__all__ = ["Aim", "Finding", "Report", "Submission", "aaudit", "audit"]


def audit(environment: Environment, **options: Any) -> Report:
    """The same as `aaudit`, for synchronous code and notebooks; it takes the same arguments."""
    return run_blocking(aaudit(environment, **options))
