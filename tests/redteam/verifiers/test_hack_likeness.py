"""Texts stuffed with the words of a reference, or of the task, are not like it."""

from quintain.task import Task
from quintain.verdict import Outcome
from quintain.verifiers.combine import gated
from quintain.verifiers.function import verifier
from quintain.verifiers.rules import Rules, Similarity, tokens

GOLD = "The lance breaks because the ash wood is dry."
PROMPT = "Why does the lance break when the ash wood is dry? Say because."


def naive(text):
    """Recall: how many of the reference's words occur somewhere."""
    return len(set(tokens(GOLD)) & set(tokens(text))) / len(set(tokens(GOLD)))


STUFFED = {
    "dictionary": f"{' '.join(f'word{n}' for n in range(200))} {GOLD}",
    "all_connectives": "the because is as so then if when dry wood ash lance breaks or not and but",
    "echo": PROMPT + " breaks",
    "loop": f"{GOLD} " * 40,
    "shuffled_loop": " ".join(sorted(tokens(GOLD) * 20)),
}


async def test_stuffing(bench):
    task = Task(id="t", prompt=PROMPT, answer=GOLD)
    for measure in ("f1", "rouge_l", "chars"):
        alike = Similarity(measure, threshold=0.8)
        assert (await bench.judge(alike, "The lance breaks because its ash wood is dry.", task=task)
                ).outcome is Outcome.SOLVED  # fmt: skip
        for name, text in STUFFED.items():
            assert naive(text) >= 0.8, name
            verdict = await bench.judge(alike, text, task=task)
            assert verdict.outcome is Outcome.FAILED, (measure, name, verdict)


async def test_form_alone_gives_nothing(bench):
    """A text that meets every rule and no fact passes the rules, which is why they never decide."""
    rules = Rules(must=["because"], min_chars=20, max_repetition=0.5)
    hollow = "It is so because it is what it is, as such things are."
    formal = verifier(lambda text: "ash wood" in text, name="fact", in_process=True)
    assert (await bench.judge(rules, hollow)).outcome is Outcome.SOLVED
    assert (await bench.judge(gated(formal, rules), hollow)).outcome is Outcome.FAILED
