"""Which attacks also run against the weak tier: those that it contains in the same words.

What it contains in other words (another error text, another refusal) is left to `probe` and to
`tests/sandbox/test_weak.py`, which also shows what it does not contain.
"""

HOLDS = {
    "test_bpf": {"test_bpf", "test_events"},
    "test_clock": {"test_clock"},
    "test_device_nodes": {"test_make_a_node"},
    "test_dotdot_paths": {"test_downloads", "test_uploads"},
    "test_environment": {"test_variables", "test_descriptors"},
    "test_forged_error_text": {"test_text"},
    "test_huge_file": {"test_sparse"},
    "test_io_uring": {"test_setup"},
    "test_kernel_interfaces": {"test_as_root_inside"},
    "test_kernel_log": {"test_log"},
    "test_keyrings": {"test_keyrings"},
    "test_mount": {"test_calls"},
    "test_other_sandbox": {"test_neighbour"},
    "test_output_flood": {"test_flood_of_errors"},
    "test_pipe_hangs_reader": {"test_lease"},
    "test_ptrace": {"test_trace"},
    "test_udp": {"test_datagram"},
}
"""Test file to its functions."""
