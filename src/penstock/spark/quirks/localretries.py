"""Plain ``local[n]`` gives up at the first lost Python worker, where a cluster tries a task four times.

So a local master is asked to do as a cluster does.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import re


def with_retries(master: str) -> str:
    """A master with four attempts per task, unless it says how many.

    >>> with_retries("local[2]"), with_retries("local"), with_retries("local[2,1]"), with_retries("spark://host:7077")
    ('local[2,4]', 'local[1,4]', 'local[2,1]', 'spark://host:7077')
    """
    if master == "local":
        return "local[1,4]"
    return re.sub(r"^local\[([^,\]]+)\]$", r"local[\1,4]", master)
