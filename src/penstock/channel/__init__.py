"""In-flight records: segment files, readers with cursors, the gate and the barrier."""
