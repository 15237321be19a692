"""Apache Paimon tables. The only package that imports pypaimon.

It may import the protocol of sinks, `store`, `protocol` and the leaves.
`private.py` holds every touch of a name that pypaimon does not promise.
"""
