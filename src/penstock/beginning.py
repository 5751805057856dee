"""When this process began. Shared word: imports nothing local.

By itself, for `python -m penstock` imports `__main__` under that name, and who imported it from
there would get it a second time, later.
"""

from __future__ import annotations

import time

# By the monotonic clock.
BEGUN = time.monotonic()
