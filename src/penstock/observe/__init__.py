"""What people and programs see of a running query: events, progress lines, metrics, dashboard."""
