"""What runs inside a subtask, step by step."""
