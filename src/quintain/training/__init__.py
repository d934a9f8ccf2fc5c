"""Training: from finished trajectories to better weights; it never evaluates, it calls back.

::

    advantages        rewards of a group -> advantages              numpy
    groups, batching  groups of trajectories -> rows of tokens      numpy
    counts            what a batch is made of, and what was masked  numpy
    packing           rows that begin alike, laid out once          numpy
    losses            log-probabilities -> a loss and its metrics   torch
    critic            values of states, advantages of PPO             torch
    learner           owns weights and optimiser                    torch
    learner_process   the learner in a process of its own
    sampler           which task comes next: uniform, band, curriculum
    guards            tells when a run goes wrong, from its metrics
    buffer            pacing, finished samples, slow members
    trainer           what both loops share: admit, play, learn, checkpoint, resume
    synchronous, asynchronous   the two loops
    run               all of it: `run_training`
    contracts         what the loops ask of learner, policy and evaluations
    evaluations       of checkpoints: in between, or beside training
    faults            pauses when the host spoils too many rollouts
    restarts          a learner that outlives its process
    timeline          what learner and rollouts do at every moment, added up
    config, algorithms          what can be set, and the presets
    bandit            the smallest policy and learner, to try loops with

Nothing here imports torch before a learner is started: `import quintain.training.advantages`
works without it.
"""
