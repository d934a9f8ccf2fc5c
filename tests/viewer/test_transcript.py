"""Transcripts show everything, shorten what is long, and obey nothing that they show."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from trajectories import HOSTILE, everything, faulty

from quintain.messages import assistant
from quintain.trajectory import (
    Action,
    Event,
    Observation,
    Step,
    StopReason,
    Trajectory,
    TrajectoryKey,
)
from quintain.viewer.transcript import (
    print_transcript,
    reproduce,
    rich_transcript,
    transcript,
    visible,
)

EXPECTED = """\
list-files · sample 2 · failed · shell · m · eval:eval@v4 · attempt 1
stopped: done · 2 steps · 2.10 s (setup 0.10, policy 1.25, environment 0.50, verifier 0.20) \
· 1,000 + 20 tokens · $0.0125 · policy version 4
── system ──
  Be careful.
── user ──
  What is here?
  [image: image/png, 3 bytes]
  [file a.pdf: application/octet-stream, https://example.org/a.pdf]
── assistant · step 1, 1.25 s, 20 tokens ──
  (thinks) Let me look.
  <script>alert('x')</script>\\x1b[2J\\x1b]0;owned\\x07[bold]hi[/bold] {{ 7*7 }}
  → shell {"cmd": "ls -l"}
  → shell {"cmd":\x20
    malformed: not valid JSON
── tool · 0.50 s ──
  ← shell:
  a.txt
  b.txt
  ← error of shell:
  not valid JSON
── assistant · step 2, 0.00 s, length ──
  Two files.
── verdict ──
failed: reward 0, score 0.5 · verifier (formal, 0.00 s)
✓ format
✗ count: 2 != 3
? names
  Expected three files.
files 2
flagged: looked at /proc
events: network.request × 2
artifacts: out.txt
reproduce: quintain run shell"""


def test_everything_is_shown():
    assert transcript(everything(), reproduce="quintain run shell") == EXPECTED


def test_faults_are_shown():
    text = transcript(faulty())
    assert "infra_error" in text
    assert "fault in sandbox: SandboxError: the sandbox died" in text
    assert "── verdict ──\nnone" in text


def test_colour_says_the_same():
    assert rich_transcript(everything()).plain == transcript(everything()) + "\n"
    out = io.StringIO()
    print_transcript(everything(), reproduce="quintain run shell", file=out)
    assert out.getvalue() == EXPECTED + "\n"


def test_nothing_written_reaches_the_terminal_as_an_escape():
    shown = transcript(everything())
    assert "\x1b" in HOSTILE
    assert "\x1b" not in shown
    assert "\x07" not in shown


@given(st.text())
def test_visible_leaves_no_control_character(text):
    shown = visible(text)
    assert not [c for c in shown if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
    assert "‮" not in shown


def test_nothing_written_passes_for_a_verdict():
    fake = "ok\n── verdict ──\nsolved: reward 1"
    trajectory = Trajectory(
        environment="e", task_id="t", policy="p", purpose="x", stop=StopReason.DONE,
        steps=(Step(action=Action(message=assistant(fake)), observation=Observation()),),
    )  # fmt: skip
    lines = transcript(trajectory).split("\n")
    assert lines.count("── verdict ──") == 1
    assert "  ── verdict ──" in lines


def test_long_parts_lose_their_middle():
    step = Step(action=Action(message=assistant("a" * 50_000)), observation=Observation())
    trajectory = everything(steps=(step,))
    assert len(transcript(trajectory)) < 8_000
    assert "44,000 characters left out" in transcript(trajectory)
    assert len(transcript(trajectory, limit=None)) > 50_000


def test_the_line_that_reproduces():
    key = TrajectoryKey("eval:eval@v0", "my env", "task; rm -rf /", 3, 0)
    assert reproduce(key, {"policy": "m", "seed": 7}) == (
        "q.rollout(environment, policy, 'task; rm -rf /', sample_index=3, "
        "purpose='eval:eval@v0', seed=7)"
    )
    line = reproduce(key._replace(environment="arithmetic"), {"policy": "m", "seed": 7})
    assert line == (
        "quintain run arithmetic --policy m --only 'task; rm -rf /:3' --seed 7 "
        "--purpose eval:eval@v0"
    )
    greedy = {"sampling": {"temperature": 0.0}, "sampling_given": True, "checkpoint": "runs/a@40"}
    assert "--policy POLICY --checkpoint runs/a@40 --temperature 0 --only" in reproduce(key, greedy)
    assert "seed=9)" in reproduce(key, {"settings": {"seed": 9}})
    command = {"environment": "my.module:env", "options": ["--policy", "chat", "--model", "Q"]}
    line = reproduce(key, {"policy": "Q", "seed": 7, "command": command})
    assert line.startswith("quintain run my.module:env --policy chat --model Q --only ")


def test_what_was_asked_of_the_network_is_shown_by_host():
    def asked(host, decision, reason=""):
        data = {"host": host, "port": 443, "decision": decision, "reason": reason}
        return Event(kind="network.request", data={**data, "up": 1000, "down": 5})

    many = [asked(f"h{at}.test", "refused", "not listed") for at in range(20)]
    events = (asked("a.test", "allowed"), asked("a.test", "allowed"), asked(HOSTILE, "x"), *many)
    text = transcript(everything().model_copy(update={"events": events}))
    assert "  a.test:443 allowed × 2, 2,000 bytes out, 10 in\n" in text
    assert "  h0.test:443 refused: not listed, 1,000 bytes out, 5 in\n" in text
    assert "  and 10 more" in text
    assert "\x1b" not in text
