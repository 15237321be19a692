"""User code per key or slice: `process`, `connect`, their declared state, timers and output."""
