"""`EvalSettings`: how a training run is measured."""

from __future__ import annotations

from pydantic import Field

from quintain.record import Record


class EvalSettings(Record):
    """Evaluations of checkpoints, and the final one."""

    samples: int = Field(default=2, gt=0)
    """Of each eval task, at every evaluated checkpoint."""
    limit: int = Field(default=100, gt=0)
    """Eval tasks, at most."""
    heldout_samples: int = Field(default=4, gt=0)
    """Of each held-out task, before and after."""
    heldout_limit: int = Field(default=200, gt=0)
    """Held-out tasks, at most."""
    greedy: bool = True
    """Whether the held-out split is also evaluated with temperature 0, one sample a task."""
    concurrency: int = Field(default=64, gt=0)
    """Rollouts at once."""
    threads: int | None = Field(default=None, gt=0)
    """Threads that a local policy samples with meanwhile: the learner waits, its cores are free.
    None: as for training."""
    gold_tasks: int = Field(default=4, ge=0)
    """Tasks of each split on which preflight tries the oracle, the fakes and an empty answer."""
    audit_tasks: int = Field(default=1, ge=0)
    """Training tasks on which preflight audits the verifier; 0: it does not, which is recorded."""
    audit_bound: float = Field(default=0.05, ge=0, le=1)
    """Largest share of wrong submissions that may pass that audit."""
    signal_tasks: int = Field(default=8, ge=0)
    """Training tasks on which preflight measures the base pass rate; 0: it does not."""
    signal_samples: int = Field(default=4, gt=0)
