"""Estimates with honest intervals: pass@k, means clustered by task, paired comparisons, power.

The unit of evidence is the task, never the sample: two samples of one task share its difficulty,
so intervals come from the spread *between tasks* (Miller 2024, arXiv 2411.00640, sections 2 to 5).
With few tasks the normal quantile is too small, so Student's t with (tasks - 1) degrees of freedom
is used. Where all tasks agree a t interval would have width 0 and claim certainty; an exact bound
on what the unseen tasks may do takes its place.

Pure: numbers in, numbers out; numpy and the standard library alone.
"""

from quintain.statistics.attempts import (
    PassK,
    pass_at_k,
    pass_at_k_of_task,
    pass_hat_k,
    pass_hat_k_of_task,
)
from quintain.statistics.clustered import Bounds, clustered_mean, group_by_task
from quintain.statistics.comparison import Paired, paired, sign_flip_test, sign_test
from quintain.statistics.distributions import (
    beta_cdf,
    beta_quantile,
    normal_quantile,
    t_quantile,
    t_tail,
)
from quintain.statistics.power import detectable_effect, paired_power, tasks_needed
from quintain.statistics.proportions import (
    Interval,
    clopper_pearson,
    trials_for_bound,
    upper_bound,
    wilson,
)
from quintain.statistics.stratified import ErrorRates, Stratum, error_rates

__all__ = [
    "Bounds",
    "ErrorRates",
    "Interval",
    "Paired",
    "PassK",
    "Stratum",
    "beta_cdf",
    "beta_quantile",
    "clopper_pearson",
    "clustered_mean",
    "detectable_effect",
    "error_rates",
    "group_by_task",
    "normal_quantile",
    "paired",
    "paired_power",
    "pass_at_k",
    "pass_at_k_of_task",
    "pass_hat_k",
    "pass_hat_k_of_task",
    "sign_flip_test",
    "sign_test",
    "t_quantile",
    "t_tail",
    "tasks_needed",
    "trials_for_bound",
    "upper_bound",
    "wilson",
]
