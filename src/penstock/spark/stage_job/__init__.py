"""A stage as a Spark job: where its rows go, what runs in the workers, how its reports come back.

The rest of `spark` imports `jobs` (the job of each stage, and what of it is planned with the stream) and `run` (how a
job is run), nothing else. `worker` and `plan_property` run in Spark's Python workers too, so they import nothing that
only the driver needs. Nothing here knows threads, or how a query is started and stopped.
"""
