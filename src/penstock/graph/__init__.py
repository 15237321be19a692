"""What a pipeline means: nodes as written, stages as run, edges between them, and the names of all of these.

It may import the protocols of operators and sinks, never a particular sink or the engine.
Everything that leaves the compiler is frozen and travels to the subtasks.
"""
