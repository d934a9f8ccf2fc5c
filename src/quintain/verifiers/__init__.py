"""Verifiers: from a trajectory to a verdict, built so that cheating cannot pay.

What is said: `answer`, `calls`, `sql`, `flag`. What code does, seen from outside of its process:
`tests`, `unseen`, `types`, `service`. What state was left: `state` (files, the host-side world),
`database`, `server_state`. Heuristics: `rules`, `judge`, `pairwise`. Around others: `combine`,
`guards`; `function` wraps a plain function. `workers` is where code that meets untrusted input is:
one killable process a call; what runs in clean rooms is `runner`, `query_runner`, the checker.
"""
