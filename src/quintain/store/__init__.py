"""One run on disk: a SQLite file (WAL), blobs by hash, checkpoints. Transactional and resumable.

A trajectory with its verdict is one transaction under (purpose, environment, task id, sample
index, attempt), and exactly one attempt is final. One thread writes, in groups: whoever commits
waits for its own transaction, and a hundred of them share one `COMMIT`. Readers have connections
of their own and never block the writer. A process that is killed at any moment loses nothing that
was committed (WAL with synchronous=NORMAL survives a process kill; a power cut may lose the last
transactions, never the file).

Layout of a run's folder: `run.sqlite`, `blobs/<hash>`, `checkpoints/`, `lock`.
"""

from quintain.store.folders import new_folder
from quintain.store.rows import CheckpointRow, GroupRow, TrajectoryRow
from quintain.store.run import Store, blob_hash, now
from quintain.store.schema import SCHEMA, run_file

__all__ = [
    "SCHEMA",
    "CheckpointRow",
    "GroupRow",
    "Store",
    "TrajectoryRow",
    "blob_hash",
    "new_folder",
    "now",
    "run_file",
]
