"""Evals: an environment run k times and summarised. There is no second kind of thing.

`evaluate` runs, `EvalRun` reads what was stored, now or later.
"""

from quintain.evals.evaluation import aevaluate, evaluate, purpose_of
from quintain.evals.rescoring import Rescored, arescore, rescore
from quintain.evals.run import EvalRun, Sample

__all__ = [
    "EvalRun",
    "Rescored",
    "Sample",
    "aevaluate",
    "arescore",
    "evaluate",
    "purpose_of",
    "rescore",
]
