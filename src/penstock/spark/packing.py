"""Pickles user code before the query starts, and names what cannot be sent to the workers."""

from __future__ import annotations

from pyspark import cloudpickle

from penstock.display import text_of
from penstock.errors import PipelineError
from penstock.graph.pipeline import Pipeline


def require_packable(pipeline: Pipeline) -> None:
    """Raises: `PipelineError` for the first operator or sink that holds something that cannot leave this process."""
    for stage in pipeline.stages:
        for node in stage.nodes:
            _require(node.spec, f"the operator {node.spec.name}")
        for binding in stage.sinks:
            _require(binding.sink, f"the sink {binding.name}")


def _require(part: object, what: str) -> None:
    try:
        cloudpickle.dumps(part)  # type: ignore[no-untyped-call]
    except Exception as error:
        said = text_of(error).partition("\n")[0]
        cause = "its code holds something that belongs to this process: a connection, a lock, an open file"
        next_step = "open it in open() of a class, or inside the function, so that each worker has its own"
        if any(word in said for word in ("SparkContext", "SparkSession", "CONTEXT_ONLY_VALID_ON_DRIVER", "py4j")):
            cause = "its code uses the SparkSession or a DataFrame, which live in the driver alone"
            next_step = (
                "compute with Spark before pen.read; take small tables into a dict first"
                " ({row.id: row.name for row in frame.collect()}), or connect a broadcast stream"
            )
        raise PipelineError(
            f"{what} cannot be sent to the workers: {type(error).__name__}: {said}", cause=cause, next_step=next_step
        ) from None
