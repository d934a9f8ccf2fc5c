"""How good a suite of hidden cases is: what of the reference it runs, and what it would miss."""

from quintain.verifiers.quality.measure import SuiteQuality, Survivor, suite_quality

__all__ = ["SuiteQuality", "Survivor", "suite_quality"]
