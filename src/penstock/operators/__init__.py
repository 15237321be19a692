"""What runs inside a subtask, step by step.

A family of operators is a folder. A *spec*, which the graph knows, is in a file `x.py`. The *operator* that it builds,
which lives for one attempt, is in `x_operator.py`. The spec imports the operator; the operator knows its spec by type
only. What both need is in files of other names. `base.py` has the protocol of specs and operators.

| family | spec | operator |
|---|---|---|
| `rowwise` | `stateless.py`: `MapBatches`, `Filter`, `FlatMap`, `Projection` | `stateless_operator.py` |
| `rowwise` | `passing.py`: `Pass` | `passing_operator.py` |
| `calls` | `map_async.py`: `MapAsync` | `map_async_operator.py` |
| `aggregate` | `running.py`: `RunningAggregate` | `running_operator.py` |
| `top_n` | `top_n.py`: `RunningTop`, `WindowTop` | `top_n_operator.py` |
| `deduplicate` | `deduplicate.py`: `Deduplicate` | `deduplicate_operator.py` |
| `window` | `window_aggregate.py`: `WindowAggregate` | `window_operator.py`, `session_operator.py` |
| `join` | `join.py`: `Join` | `join_operator.py` |
| `process` | `process.py`: `Process` | `process_operator.py` |
| `process` | `batch_process.py`: `SliceProcess` | `batch_process_operator.py` |
| `process` | `connect.py`: `Connect` | `connect_operator.py` |
| `failures` | `careful.py`: `CarefulSpec`, for those above | `careful_operator.py` |
"""
