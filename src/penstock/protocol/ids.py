"""A type for every id, so that a checkpoint id cannot be passed where a batch id belongs."""

from __future__ import annotations

from typing import NewType

CheckpointId = NewType("CheckpointId", int)
Generation = NewType("Generation", int)
BatchId = NewType("BatchId", int)
KeyGroup = NewType("KeyGroup", int)
SubtaskIndex = NewType("SubtaskIndex", int)
EdgeName = NewType("EdgeName", str)
StageName = NewType("StageName", str)
OperatorName = NewType("OperatorName", str)
SinkName = NewType("SinkName", str)
