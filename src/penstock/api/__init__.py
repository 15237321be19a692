"""What users write: streams, keyed streams, windows, outputs, and the checks made while a pipeline is written.

It may import everything below it; nothing but `penstock/__init__.py` and `testing` imports it.
Nothing here runs records: a method makes a node, and `start` hands the nodes to the compiler.
"""
