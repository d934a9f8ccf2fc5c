"""What the candidate left: its files, from the episode's sandbox or from what was kept of it.

A file that is missing, too long or not to be read is the candidate's doing. A host that does not
answer in time is not: `TimeoutError` is an `OSError` for Python, and must not fail the candidate.
"""

from __future__ import annotations

from quintain.protocols import JudgeContext


async def candidate_file(
    context: JudgeContext, path: str, max_bytes: int
) -> tuple[bytes | None, str]:
    """A file's content; or None and why there is none.

    Args:
        context: of the verdict; its sandbox is gone when a stored trajectory is judged again.
        path: in the episode's sandbox.
        max_bytes: a longer file counts as not to be read.

    Raises:
        SandboxError: the sandbox is broken.
        TimeoutError: it did not answer.
    """
    if context.sandbox is None:
        data = context.artifact(path)
        if data is None:
            return None, "not kept with the trajectory"
        if len(data) > max_bytes:
            return None, f"cannot be read: longer than the {max_bytes} bytes allowed"
        return data, ""
    try:
        return await context.sandbox.read(path, max_bytes=max_bytes), ""
    except TimeoutError:
        raise
    except FileNotFoundError:
        return None, "missing in the episode's sandbox"
    except OSError as error:
        return None, f"cannot be read: {error}"
