"""In-flight records: segment files, readers with cursors, live rows, lanes, and the gate of a subtask.

It may import `store`, `protocol` and the leaves; never `state` or `operators`.
Nothing here knows what records mean.
"""
