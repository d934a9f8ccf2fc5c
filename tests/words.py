"""An environment for the bandit: the word `cat` earns 1."""

from quintain.envs.environment import Environment
from quintain.messages import assistant


async def says_cat(text):
    return text == "cat"


def words(verifier=says_cat, train=24, others=0, **settings):
    """Tasks without any content; `others` are the eval and the held-out tasks, each so many."""
    counts = {"train": train, "eval": others, "heldout": others}
    return Environment(
        [
            {"id": f"{split}{i}", "prompt": f"{split} task {i}", "split": split}
            for split, count in counts.items()
            for i in range(count)
        ],
        verifier,
        name="words",
        oracle=lambda task: [assistant("cat")],
        fakes=lambda task: [[assistant("CAT")]],
        **settings,
    )
