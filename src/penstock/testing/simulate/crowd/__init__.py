"""A query of thousands of subtasks: the real driver under faults, with subtasks that are models.

A real subtask takes milliseconds, so ten thousand of them in each of fifty epochs would take hours. The models keep to
the same protocol: they read spans, move cursors, write segments, state and committables, and report.
"""
