"""Training: from finished trajectories to better weights; it never evaluates, it calls back.

::

    advantages   rewards of a group -> advantages              numpy
    batching     groups of trajectories -> rows of tokens      numpy
    losses       log-probabilities -> a loss and its metrics   torch
    learner      owns weights and optimiser                    torch
    learner_process   the learner in a process of its own
    sampler      which task comes next, as a function of a counter
    buffer       finished groups, staleness, pacing            asyncio
    synchronous, asynchronous   the two loops
    config, algorithms   what can be set, and the presets

Nothing here imports torch before a learner is started: `import quintain.training.advantages`
works without it.
"""
