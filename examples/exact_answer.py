"""Questions from a file of JSON lines, judged by comparing the answer with the expected one.

quintain eval examples/exact_answer.py:env --model Qwen3-8B --base-url http://localhost:8000/v1
"""

from pathlib import Path

import quintain as q

env = q.Environment(
    name="capitals",
    tasks=q.tasks.jsonl(
        Path(__file__).with_name("capitals.jsonl"), prompt="question", answer="expected"
    ),
    system_prompt="Answer with one word.",
    verifier=q.Answer("text"),
    limits=q.Limits(max_steps=1),
    oracle=lambda task: [task.answer],
    fakes=lambda task: [["Atlantis"], [f"Not {task.answer}, I think."]],
)
