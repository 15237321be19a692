"""Windows over event time: tumbling, sliding and session windows, their panes and how they close."""
