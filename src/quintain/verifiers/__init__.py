"""Verifiers: from a trajectory to a verdict, built so that cheating cannot pay.

`answer` compares what a policy says with a gold answer, `tests` runs its code against hidden
cases from outside of its process, `function` wraps a plain function. `workers` is where code that
meets untrusted input runs: one killable process a call.
"""
