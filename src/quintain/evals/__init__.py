"""Evals: an environment run k times and summarised. There is no second kind of thing.

`evaluate` runs, `EvalRun` reads what was stored, now or later.
"""

from quintain.evals.evaluation import aevaluate, evaluate, purpose_of
from quintain.evals.run import EvalRun, Sample

__all__ = ["EvalRun", "Sample", "aevaluate", "evaluate", "purpose_of"]
