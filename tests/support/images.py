"""A server put back to an older image of itself, as a restored backup is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.postgres.embedded import EmbeddedPostgres


@contextmanager
def put_back(server: EmbeddedPostgres, image: Path) -> Iterator[None]:
    """Afterwards the server is stopped, and knows nothing of what was done in the block.

    `image`: where its files are kept meanwhile.
    """
    server.stop()
    shutil.copytree(server.data_dir, image)
    server.start()
    yield
    server.stop()
    shutil.rmtree(server.data_dir)
    shutil.move(image, server.data_dir)
