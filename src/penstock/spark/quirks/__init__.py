"""Ways around particular habits of Spark, one per file, each with its reason and the version it was seen in.

Nothing but `spark` imports it.
A file here can be deleted once Spark has changed.
"""
