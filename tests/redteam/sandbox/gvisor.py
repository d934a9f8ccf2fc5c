"""What gVisor answers in another way than Linux, so that these attacks cannot judge it, and how.

The walls towards the host are judged by all the others, and by the probe's attacks.
"""

KILLED = "what has too many processes is killed within 20 ms, not refused"
DIES = "its kernel is a process, which dies as a whole when its memory or threads run out"

DIFFERS = {
    "test_only_harmless_devices_are_there": "its kernel has a fuse and a net/tun of its own",
    "test_many_processes": KILLED,
    "test_threads": KILLED,
    "test_zombies": KILLED,
    "test_endless_bomb": DIES,
    "test_bomb_beside_another_command": DIES,
    "test_one_process": DIES,
    "test_many_small_processes": DIES,
    "test_immunity": DIES,
    "test_as_root_inside": "it refuses user='root' by name",
    "test_magic_links_are_not_followed": "no openat2; its owner reads with the candidate's rights",
    "test_lease": "it has no leases",
    "test_mount": "/proc/cmdline is its own kernel's",
    "test_address": "it says: no route to host",
    "test_priority": "a priority raised inside its kernel is none on the host",
    "test_memory_of_the_supervisor": "the environment of others shows inside one sandbox",
    "test_remove": "it says: permission denied",
    "test_close": "its processes are not the host's, where this attack looks for them",
    "test_typing": "it says: input/output error",
}
"""Test function to the difference."""
