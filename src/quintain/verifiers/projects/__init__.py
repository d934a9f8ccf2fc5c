"""Project mode of the `tests` verifier: a repository, judged by tests it never held.

`suite` says what a task declares, `sources` takes the allow-listed files of the candidate, `patch`
reads them out of a diff, `judge` runs the tests. The `room_*` files are sent into sandboxes as text
and import nothing of this package.
"""
