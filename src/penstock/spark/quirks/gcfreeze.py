"""Spark's Python workers collect garbage after every task, over everything that was ever imported.

Freezing the imported objects makes that cheap. It must happen once in each worker process, after the imports. A flag
remembers it: `gc.get_freeze_count()` would not do, because the process that workers are forked from has frozen objects
of its own.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import gc

_frozen = False


def freeze_once() -> None:
    """Takes what lives now out of all later collections."""
    global _frozen
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
