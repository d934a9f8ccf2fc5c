"""The walk of one task from sandbox to verdict to store; groups of them, and many of them."""

from quintain.rollouts.attempt import attempt
from quintain.rollouts.blocking import run_blocking
from quintain.rollouts.host import Budget, Host, Job
from quintain.rollouts.schedule import Progress, rollout, rollout_group, schedule

__all__ = [
    "Budget",
    "Host",
    "Job",
    "Progress",
    "attempt",
    "rollout",
    "rollout_group",
    "run_blocking",
    "schedule",
]
