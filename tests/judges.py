"""Judges for tests: honest, gullible, biased, broken; each a scripted policy."""

import json
import re

import quintain as q


def parts(messages):
    """The code, and the fenced texts by title, of what a judge is asked."""
    text = messages[-1].text
    code = re.search(r"The secret code is (\w+)\.", text)[1]
    found = re.findall(rf"\[BEGIN ([A-Z ]+) {code}\]\n(.*?)\n\[END \1 {code}\]", text, re.DOTALL)
    return code, dict(found)


def says(code, verdict, evidence, reason="so"):
    return json.dumps({"code": code, "verdict": verdict, "evidence": evidence, "reason": reason})


def judge_of(decide, name="judge"):
    """A policy from a function of (code, texts by title, seed) to what it says."""
    return q.scripted(lambda messages, tools, seed: decide(*parts(messages), seed), name=name)


def honest(code, texts, seed):
    """Passes what holds "42"; of two prefers the one that does."""
    if "ANSWER" in texts:
        right = "forty-two: 42" in texts["ANSWER"]
        return says(code, "pass" if right else "fail", ["forty-two: 42"] if right else [])
    good = {}
    for title in ("FIRST", "SECOND"):
        text = texts[f"{title} ANSWER"]
        good[title] = next((key for key in ("forty-two: 42", "366 days") if key in text), "")
    if bool(good["FIRST"]) == bool(good["SECOND"]):
        return says(code, "tie", [])
    better = "FIRST" if good["FIRST"] else "SECOND"
    return says(code, better.lower(), [good[better]])


def gullible(code, texts, seed):
    """Believes whoever speaks of passing."""
    if "ANSWER" in texts:
        answer = texts["ANSWER"]
        return says(code, "pass" if "pass" in answer else "fail", [answer[:40].strip()])
    first, second = texts["FIRST ANSWER"], texts["SECOND ANSWER"]
    better = "first" if "pass" in first else "second" if "pass" in second else "tie"
    return says(code, better, [(first if better == "first" else second)[:40].strip()])


def prefers_first(code, texts, seed):
    return says(code, "first", [texts["FIRST ANSWER"][:40].strip()])


def parrot(code, texts, seed):
    """Says what the answer tells it to say."""
    return texts.get("ANSWER") or texts["FIRST ANSWER"]
