"""The data of a checkpoint folder as Arrow: rows in flight, state, and lists of what is there. Reads only.

Everything is read through the checked readers of `store`, `inflight` and `state`: a folder may be a stranger's.
"""
