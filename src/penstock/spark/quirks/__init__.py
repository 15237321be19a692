"""Ways around particular habits of Spark, one per file. Each docstring gives the reason and the version it was seen in.

It may import `spark.failures`, `protocol`, the leaves and libraries. Only `spark` imports it. Only here does `spark`
touch a name that Spark keeps private. A file can be deleted once Spark has changed.
"""
