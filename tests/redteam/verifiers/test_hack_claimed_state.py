"""State that is claimed, hidden or dressed up is seen as what it is."""

from quintain.task import SandboxSpec
from quintain.verdict import Outcome
from quintain.verifiers.state import Files

WANTED = {"files": {"report": {"text": "42"}, "draft": {"absent": True}}, "only": True}
LS = "#!/bin/sh\necho report\n"
FOOLS = {
    "hidden": "echo 42 > report; touch .draft",
    "lying_ls": "echo 42 > report; touch draft; mkdir /tmp/bin; cp ls.txt /tmp/bin/ls; "
    "rm ls.txt; chmod +x /tmp/bin/ls",
}
OTHERS = {
    "claimed": "true",
    "nothing_in_it": ": > report",
    "many_answers": "seq 1 100 > report",
    "a_folder": "mkdir report; echo 42 > report/report",
    "a_pipe": "mkfifo report",
    "a_link_out": "ln -s /proc/self/cmdline report",
    "a_link_to_itself": "ln -s report report",
    "huge": "echo 42 > report; truncate -s 100M report",
    "renamed": "echo 42 > 'report '",
    "draft_as_link": "echo 42 > report; ln -s nowhere draft",
    "deep": "echo 42 > report; d=x; for i in $(seq 120); do mkdir $d; cd $d; done",
}


async def test_only_the_state_counts(bench):
    for name, script in {**FOOLS, **OTHERS}.items():
        box = await bench.open_sandbox(SandboxSpec(env={"PATH": "/tmp/bin:/usr/bin:/bin"}))
        try:
            await attack(bench, box, name, script)
        finally:
            await box.close()


async def attack(bench, box, name, script):
    if name == "lying_ls":
        await box.write("ls.txt", LS)
    assert (await box.exec(["sh", "-c", script])).ok
    text = "I wrote 42 into report and removed the draft. All files are as asked."
    verdict = await bench.judge(Files(max_bytes=1000), text, WANTED, sandbox=box)
    assert verdict.outcome is Outcome.FAILED, (name, verdict)
    naive = "ls; test -p report || head -c 100 report"
    asked = (await box.exec(["sh", "-c", naive])).text
    assert (asked == "report\n42\n") == (name in FOOLS), name
