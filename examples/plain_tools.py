"""A tool environment: plain typed functions are the tools, a plain function is the verifier."""

import quintain as q

PRICES = {"teapot": 24, "cup": 6, "tray": 15}
ROWS = [
    {"prompt": f"What do {n} {item}s cost? Answer with the number.", "answer": [item, n]}
    for item in PRICES
    for n in range(2, 30)
]


def search(word: str) -> list[str]:
    """Names of the items in the shop that contain a word.

    Args:
        word: part of a name; empty: all items.
    """
    return [name for name in PRICES if word.lower() in name]


async def price(item: str) -> int:
    """The price of one item."""
    if item not in PRICES:
        raise q.tools.ToolError(f"there is no {item!r}; search for it first")
    return PRICES[item]


def right(text: str, answer: list, trajectory: q.Trajectory) -> bool:
    """The number is right, and the price was asked for."""
    item, n = answer
    asked = [call.arguments for step in trajectory.steps for call in step.action.message.tool_calls]
    return text.strip() == str(n * PRICES[item]) and {"item": item} in asked


env = q.Environment(
    name="shop", tasks=ROWS, tools=[search, price], verifier=right, limits=q.Limits(max_steps=6)
)
