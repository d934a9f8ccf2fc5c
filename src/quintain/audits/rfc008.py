"""The 44 checks of OpenEnv's RFC 008 (environment auto-validation), as far as an audit knows them.

Numbers and ids are the RFC's (huggingface/OpenEnv #778, #1041). What the RFC leaves to operators
or dropped, and what there is nothing of in an environment, is not applicable; what an audit could
know and was not asked to, or what another command measures, is not measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from quintain.audits.report import Report
from quintain.protocols import Environment
from quintain.record import digest
from quintain.task import SandboxSpec, Split

Status = Literal["passed", "failed", "not applicable", "not measured"]
Said = tuple[Status, str]
GAP = 0.9
"""Least correlation of reward and truth over submissions of known worth."""
PINNED_TASKS = 20


@dataclass(frozen=True, slots=True)
class Check:
    """One of the checks, and what became of it."""

    number: int
    id: str
    title: str
    status: Status
    reason: str


class _Facts:
    """What the checks look at."""

    def __init__(self, report: Report, environment: Environment) -> None:
        self.report = report
        self.environment = environment
        self.sandbox: SandboxSpec | None = environment.sandbox

    def boxed(self, status: Callable[[SandboxSpec], Said]) -> Said:
        if self.sandbox is None:
            return "not applicable", "the environment has no sandbox"
        return status(self.sandbox)


def _image(facts: _Facts) -> Said:
    if facts.sandbox is None or not (facts.sandbox.needs_build or facts.sandbox.image):
        return "not applicable", "no image is built"
    return "not measured", "images are kept by the hash of what they are made of (quintain images)"


def _no_image(facts: _Facts) -> Said:
    return "not applicable", "an environment is a Python package; no image is published with it"


def _operator(facts: _Facts) -> Said:
    return "not applicable", "the RFC leaves it to whoever runs a hub"


def _dropped(facts: _Facts) -> Said:
    return "not applicable", "dropped from the RFC's first version"


def _declared_resources(facts: _Facts) -> Said:
    return facts.boxed(
        lambda spec: (
            "passed",
            f"{spec.cpus:g} CPUs, {spec.memory_mb} MB memory, {spec.disk_mb} MB disk, "
            f"{spec.max_pids} processes",
        )
    )


def _envelope(facts: _Facts) -> Said:
    if not facts.report.has_gold:
        return "not measured", "no solution is known that could run within the limits"
    if facts.report.gold_fails:
        return "failed", f"the solution of {facts.report.gold_fails[0]} fails under the limits"
    return facts.boxed(lambda spec: ("passed", "the solutions pass within the declared limits"))


def _timeout(facts: _Facts) -> Said:
    limits = facts.environment.limits
    return "passed", f"an episode ends after {limits.wall_s:g} s or {limits.max_steps} steps"


def _rate(facts: _Facts, good: Callable[[float], bool], bad: str) -> Said:
    tried = facts.report.learnability
    if tried is None or not tried.rate.n:
        return "not measured", "no policy was given (--policy)"
    return ("passed" if good(tried.rate.value) else "failed"), (
        str(tried) if good(tried.rate.value) else f"{tried}: {bad}"
    )


def _reachable(facts: _Facts) -> Said:
    return _rate(facts, lambda rate: rate > 0, "nothing is solved")


def _headroom(facts: _Facts) -> Said:
    return _rate(facts, lambda rate: rate < 1, "everything is solved already")


def _separation(facts: _Facts) -> Said:
    return "not measured", "needs models of several strengths: quintain eval, once each"


def _improvement(facts: _Facts) -> Said:
    return "not measured", "needs a training run: quintain train"


def _network(facts: _Facts) -> Said:
    def said(spec: SandboxSpec) -> Said:
        seen = [p.interfaces for p in facts.report.probes if p.interfaces is not None]
        if spec.network.mode != "none" or not seen:
            return "not measured", "a proxy decides by name; quintain doctor attacks it"
        others = sorted({name for names in seen for name in names} - {"lo"})
        if others:
            return "failed", f"declared: none; the sandbox has {', '.join(others)}"
        return "passed", "declared: none; the sandbox has no interface but its own loopback"

    return facts.boxed(said)


def _containment(facts: _Facts) -> Said:
    return facts.boxed(lambda spec: ("not measured", "quintain doctor attacks every backend"))


def _bounds(facts: _Facts) -> Said:
    return facts.boxed(
        lambda spec: (
            "passed",
            "by construction: what cannot be enforced is refused",
        )
    )


def _isolation(facts: _Facts) -> Said:
    seen = [probed.remains for probed in facts.report.probes if probed.remains is not None]
    if not seen:
        return facts.boxed(lambda spec: ("not measured", "the sandbox was not looked into"))
    left = [path for remains in seen for path in remains]
    if left:
        return "failed", f"an episode finds what one before it wrote: {left[0]}"
    return "passed", "files that one episode wrote are gone in the next"


def _answer_contained(facts: _Facts) -> Said:
    wrong = {"BGW-111", "BGW-112", "BGW-115", "BGW-116", "BGW-131"}
    found = [finding for finding in facts.report.findings if finding.weakness in wrong]
    if found:
        return "failed", f"{found[0].title}: {found[0].submission}"
    if "leaks" in facts.report.unmeasured:
        return "not measured", facts.report.unmeasured["leaks"]
    return "passed", "no probe and no exploit reaches answer, reward or results"


def _well_formed(facts: _Facts) -> Said:
    rewards = [reward for trial in facts.report.trials for reward in trial.rewards]
    given = [reward for reward in rewards if reward is not None]
    if not given:
        return "not measured", "nothing was judged"
    bad = [reward for reward in given if not (math.isfinite(reward) and 0 <= reward <= 1)]
    if bad:
        return "failed", f"a reward of {bad[0]}"
    return "passed", f"{len(given)} rewards, all finite and in [0, 1]"


def _attributed(facts: _Facts) -> Said:
    named = sum(trial.checks > 0 for trial in facts.report.trials)
    if not named:
        return "failed", "no verdict names what it checked"
    return "passed", f"the verdicts on {named} submissions name what was checked"


def _sanity(facts: _Facts) -> Said:
    report = facts.report
    if not report.has_gold:
        return "failed", "no solution is known: an environment without an oracle shows nothing"
    if report.gold_fails:
        return "failed", f"the solution of {report.gold_fails[0]} fails"
    if not report.null_score.n:
        return "not measured", "the solutions pass; what solves nothing was not tried"
    if report.null_score.value > 0:
        return "failed", f"what solves nothing scores {report.null_score}"
    return "passed", f"solutions earn 1, what solves nothing {report.null_score}"


def _adversarial(facts: _Facts) -> Said:
    rate = facts.report.false_positives
    if not rate.n:
        return "not measured", "no wrong submission was judged"
    return ("failed" if rate.value > 0 else "passed"), f"wrong submissions that pass: {rate}"


def _gap(facts: _Facts) -> Said:
    known = [t for t in facts.report.trials if t.submission.right is not None and t.judged]
    pairs = [(bool(trial.submission.right), trial.passed) for trial in known]
    a, b = pairs.count((True, True)), pairs.count((True, False))
    c, d = pairs.count((False, True)), pairs.count((False, False))
    below = math.sqrt((a + b) * (c + d) * (a + c) * (b + d))
    if not below:
        return "not measured", "right and wrong submissions are not both known"
    phi = (a * d - b * c) / below
    return ("passed" if phi >= GAP else "failed"), f"reward and truth correlate with {phi:.3f}"


def _canaries(facts: _Facts) -> Said:
    passed, n = facts.report.kinds.get("declared fake", (0, 0))
    if not n:
        return "not measured", "the environment declares no fakes"
    return ("failed" if passed else "passed"), f"{passed} of {n} declared fakes pass"


def _observations(facts: _Facts) -> Said:
    return "passed", "by construction: observations are typed messages"


def _no_leak(facts: _Facts) -> Said:
    if "leaks" in facts.report.unmeasured:
        return "not measured", facts.report.unmeasured["leaks"]
    leaks = facts.report.leaks
    certain = [leak for leak in leaks if leak.certain]
    if certain:
        return "failed", f"{certain[0].where} holds a part {certain[0].what}"
    if leaks:
        return "not measured", f"for a person to look at: {leaks[0].where}, {leaks[0].what}"
    return "passed", "nothing of the answer stands where the policy can look"


def _state(facts: _Facts) -> Said:
    return "not applicable", "no state is served; steps are counted in the trajectory"


def _recorded(facts: _Facts) -> Said:
    return "passed", f"{facts.report.verdicts} trajectories were recorded"


def _tools(facts: _Facts) -> Said:
    if not facts.report.probes:
        return "not measured", "no episode was opened to look"
    declared = {tool.spec.name for tool in getattr(facts.environment, "tools", ())}
    for probed in facts.report.probes:
        shown = {tool.name for tool in probed.tools}
        if probed.fault:
            return "not measured", probed.fault
        if shown != declared:
            return "failed", f"declared {sorted(declared)}, offered {sorted(shown)}"
    return "passed", f"{len(declared)} declared and offered"


def _tasks(facts: _Facts) -> Said:
    for name in facts.report.tasks:
        if facts.environment.tasks.get(name).id != name:
            return "failed", f"asked for {name!r}, another task comes"
    return "passed", f"{len(facts.report.tasks)} tasks are found by their ids"


def _seeds(facts: _Facts) -> Said:
    same = [p.same_opening for p in facts.report.probes if p.same_opening is not None]
    if not same:
        return "not measured", "no episode was opened twice"
    if not all(same):
        return "failed", "equal seeds open different episodes"
    return "passed", "equal seeds open equal episodes"


def _determinism(facts: _Facts) -> Said:
    if len(facts.report.costs) < 2:
        return "not measured", "one pass was played"
    if facts.report.flips:
        return "failed", f"{facts.report.flips} verdicts change between passes"
    return "passed", f"no verdict changes over {len(facts.report.costs)} passes"


def _episodes(facts: _Facts) -> Said:
    opened = _seeds(facts)
    return opened if opened[0] != "passed" else _determinism(facts)


def _portable(facts: _Facts) -> Said:
    if facts.environment.verifier.kind == "heuristic":
        return "not applicable", "the verifier may ask a model"
    return "not measured", "whether a verifier reaches the network is not watched"


def _dependencies(facts: _Facts) -> Said:
    def said(spec: SandboxSpec) -> Said:
        if not spec.packages:
            return "not applicable", "no packages are installed"
        loose = [package for package in spec.packages if "==" not in package]
        return ("failed", f"without a version: {loose[0]}") if loose else ("passed", "all pinned")

    return facts.boxed(said)


def _distribution(facts: _Facts) -> Said:
    def look() -> list[str]:
        tasks = facts.environment.tasks
        found = [task for split in Split for task in islice(tasks.split(split), PINNED_TASKS)]
        return [digest(json.dumps(task.model_dump(mode="json"), sort_keys=True)) for task in found]

    first = look()
    if first != look():
        return "failed", "the same splits give other tasks the second time"
    return "passed", f"{len(first)} tasks are the same when they are asked for again"


def _replay(facts: _Facts) -> Said:
    golds = [trial for trial in facts.report.trials if trial.submission.kind == "gold"]
    if not golds or len(facts.report.costs) < 2:
        return "not measured", "no solution was played twice"
    if any(trial.flipped for trial in golds):
        return "failed", "a solution played again earns another reward"
    return "passed", f"{len(golds)} solutions earn the same whenever they are played"


_TABLE: tuple[tuple[str, str, Callable[[_Facts], Said]], ...] = (
    ("static.reproducible_build", "reproducible build", _image),
    ("hub.layer_isolation", "layer-change isolation", _operator),
    ("static.image_hygiene", "multi-stage hygiene", _image),
    ("static.layout", "archive-free layout", _image),
    ("(conversion)", "conversion clean", _dropped),
    ("hub.time_to_first_work", "time to first useful work", _operator),
    ("(composition)", "composition inspection", _dropped),
    ("static.sbom", "signature and SBOM", _no_image),
    ("static.oci_labels", "OCI labels", _no_image),
    ("static.resource_declaration", "resource declaration", _declared_resources),
    ("semantic.resource_envelope", "measured envelope", _envelope),
    ("static.timeout_ceiling", "timeout ceiling", _timeout),
    ("statistical.reward_reachability", "reward reachability", _reachable),
    ("statistical.difficulty_separation", "difficulty separation", _separation),
    ("statistical.headroom", "headroom", _headroom),
    ("statistical.variance_bound", "reward signal-to-noise", _determinism),
    ("statistical.training_signal", "improvement signal", _improvement),
    ("runtime.network_policy", "declared network policy enforced", _network),
    ("runtime.host_containment", "file system and host containment", _containment),
    ("runtime.resource_bounds", "resource bounds per episode", _bounds),
    ("runtime.episode_isolation", "cross-episode isolation", _isolation),
    ("runtime.oracle_containment", "reward and ground-truth containment", _answer_contained),
    ("runtime.reward_well_formed", "well-formed reward", _well_formed),
    ("runtime.rubric_introspectable", "rubric introspectability", _attributed),
    ("semantic.oracle_max, semantic.floor_gap", "verifier sanity", _sanity),
    ("statistical.adversarial_floor", "adversarial floor", _adversarial),
    ("statistical.gameability_gap", "gameability gap", _gap),
    ("semantic.canary_floor", "canary suite", _canaries),
    ("runtime.observation_schema", "observation conformance", _observations),
    ("semantic.no_solution_leakage", "no solution leakage", _no_leak),
    ("runtime.state_contract", "state contract", _state),
    ("runtime.trajectory_record", "trajectory record", _recorded),
    ("runtime.reward_attribution", "reward attribution", _attributed),
    ("runtime.tool_declaration_accuracy", "tool declaration accuracy", _tools),
    ("runtime.task_declaration_accuracy", "task declaration accuracy", _tasks),
    ("runtime.seed_control", "seed control", _seeds),
    ("runtime.episode_determinism", "episode determinism", _episodes),
    ("hub.cross_host_determinism", "cross-host reproducibility", _operator),
    ("semantic.verifier_determinism", "verifier determinism", _determinism),
    ("semantic.verifier_portability", "verifier portability", _portable),
    ("static.dependency_pinning", "dependency pinning", _dependencies),
    ("static.task_distribution_pinning", "task-distribution pinning", _distribution),
    ("hub.immutable_versioning", "immutable versioning", _operator),
    ("semantic.replayability", "replayability", _replay),
)


def checks(report: Report, environment: Environment) -> list[Check]:
    """All 44, in the RFC's order.

    Args:
        report: of an audit of the environment.
        environment: the same.
    """
    facts = _Facts(report, environment)
    return [
        Check(number, name, title, *look(facts))
        for number, (name, title, look) in enumerate(_TABLE, start=1)
    ]
