"""The whole loop: check, evaluate, train with evaluations on the way, choose, measure once.

`training` never evaluates and `evals` never trains; here they meet.
"""

from quintain.loop.driver import atrain, train
from quintain.loop.run import Selection, TrainRun
from quintain.loop.select import Candidate, dominates, pareto_front, pick
from quintain.loop.settings import EvalSettings

__all__ = [
    "Candidate",
    "EvalSettings",
    "Selection",
    "TrainRun",
    "atrain",
    "dominates",
    "pareto_front",
    "pick",
    "train",
]
