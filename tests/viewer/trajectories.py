"""Trajectories that hold a bit of everything, hostile text included."""

from __future__ import annotations

from quintain.messages import (
    FilePart,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResult,
    system,
    tool_results,
    user,
)
from quintain.trajectory import (
    Action,
    Event,
    Fault,
    Observation,
    Step,
    StopReason,
    Timing,
    TokenSpan,
    Trajectory,
    Usage,
)
from quintain.verdict import Check, Outcome, Verdict

HOSTILE = "<script>alert('x')</script>\x1b[2J\x1b]0;owned\x07[bold]hi[/bold] {{ 7*7 }}"


def everything(**more):
    call = ToolCall(id="c1", name="shell", arguments={"cmd": "ls -l"})
    broken = ToolCall(id="c2", name="shell", raw='{"cmd": ', error="not valid JSON")
    said = (ReasoningPart(text="Let me look."), TextPart(text=HOSTILE), call, broken)
    answered = tool_results(
        ToolResult(call_id="c1", name="shell", content=(TextPart(text="a.txt\nb.txt"),)),
        ToolResult(
            call_id="c2", name="shell", content=(TextPart(text="not valid JSON"),), is_error=True
        ),
    )
    span = TokenSpan(
        prompt_delta_ids=(1,), token_ids=(2, 3), logprobs=(-1.0, -2.0), policy_version=4
    )
    fields = {
        "environment": "shell",
        "task_id": "list-files",
        "policy": "m",
        "purpose": "eval:eval@v4",
        "sample_index": 2,
        "attempt": 1,
        "opening": Observation(
            messages=(
                system("Be careful."),
                user(
                    "What is here?",
                    ImagePart(data=b"123", media_type="image/png"),
                    FilePart(name="a.pdf", url="https://example.org/a.pdf"),
                ),
            )
        ),
        "steps": (
            Step(
                action=Action(
                    message=Message(role="assistant", content=said),
                    tokens=(span,),
                    finish="tool_calls",
                    usage=Usage(calls=1, prompt_tokens=1000, completion_tokens=20),
                ),
                observation=Observation(messages=(answered,), malformed=1),
                policy_s=1.25,
                env_s=0.5,
            ),
            Step(
                action=Action(
                    message=Message(role="assistant", content="Two files."), finish="length"
                ),
                observation=Observation(terminated=True),
            ),
        ),
        "stop": StopReason.DONE,
        "outcome": Outcome.FAILED,
        "verdict": Verdict.of(
            False,
            "Expected three files.",
            checks=(
                Check(name="format", passed=True),
                Check(name="count", passed=False, detail="2 != 3"),
                Check(name="names", passed=None),
            ),
            score=0.5,
            metrics={"files": 2.0},
            flags=("looked at /proc",),
        ),
        "events": (
            Event(kind="network.request", at_s=0.1),
            Event(kind="network.request", at_s=0.2),
        ),
        "artifacts": {"out.txt": "0" * 64},
        "usage": Usage(calls=2, prompt_tokens=1000, completion_tokens=20, cost_usd=0.0125),
        "timing": Timing(setup_s=0.1, policy_s=1.25, env_s=0.5, verify_s=0.2, total_s=2.1),
    }
    return Trajectory(**{**fields, **more})


def faulty():
    return everything(
        outcome=Outcome.INFRA_ERROR,
        verdict=None,
        stop=StopReason.ERROR,
        error=Fault(type="SandboxError", stage="sandbox", message="the sandbox died"),
    )
