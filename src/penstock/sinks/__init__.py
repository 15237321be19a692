"""Where results go: writers run in subtasks, the committer runs in the driver."""
