"""Names for what can be wrong with a verifier: the public list of grader weaknesses, by its ids.

The ids are those of the Bohrin weakness list (BGW-101 to BGW-138, Apache-2.0), so that findings of
different tools can be compared; what stands here is the id and a short name in our words.
"""

from __future__ import annotations

WEAKNESSES = {
    "BGW-101": "a trivial implementation passes",
    "BGW-102": "exiting before the checks passes",
    "BGW-103": "an object that equals everything passes",
    "BGW-104": "hard-coded expected outputs pass",
    "BGW-105": "state is kept from call to call",
    "BGW-106": "dead code satisfies a static check",
    "BGW-107": "the letter of the task, not its intent, passes",
    "BGW-108": "a hook of the test framework decides",
    "BGW-109": "tests can be edited, deleted or skipped",
    "BGW-110": "a replaced tool decides",
    "BGW-111": "the reward file can be written",
    "BGW-112": "the reader of results can be replaced",
    "BGW-113": "what is measured can be tampered with",
    "BGW-114": "shared state can be changed by a side channel",
    "BGW-115": "the solution stands in the task",
    "BGW-116": "the reference or the verifier can be read at run time",
    "BGW-117": "future states of the repository can be read",
    "BGW-118": "the solution can be fetched from the network",
    "BGW-119": "the tests are too weak",
    "BGW-120": "the tests are too narrow: right solutions fail",
    "BGW-121": "task and tests contradict each other",
    "BGW-122": "partial credit rewards the wrong approach",
    "BGW-123": "the comparison of outputs is too lenient",
    "BGW-124": "the reference solution is wrong",
    "BGW-125": "nothing is really evaluated",
    "BGW-126": "a failure counts as success",
    "BGW-127": "the verdict is not deterministic",
    "BGW-128": "verdicts are combined wrongly",
    "BGW-129": "the grader runs data of the candidate",
    "BGW-130": "candidate and grader share their surroundings",
    "BGW-131": "the candidate can write where the grader reads",
    "BGW-132": "too many rights, or a way out to the network",
    "BGW-133": "the evaluation is too small or too noisy",
    "BGW-134": "the numeric tolerance is too loose",
    "BGW-135": "incomplete proofs are accepted",
    "BGW-136": "queries are compared on one database only",
    "BGW-137": "code is executed by tests but not checked",
    "BGW-138": "a proxy of the state is checked, not the state",
}
"""Id to what a finding of it says."""
