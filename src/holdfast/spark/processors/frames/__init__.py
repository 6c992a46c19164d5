"""Frames of pandas, in and out, for processors of that flavour; imports pandas, which is slow, so import it late.

frames_of_keys  the rows of a key as frames
frames_out      frames that a processor gives, as batches of the output schema
frame_parts     parts of large frames, and columns of small ones
"""

from holdfast.spark.processors.frames.frames_of_keys import FramesOfKeys, values_in_frames
from holdfast.spark.processors.frames.frames_out import FramesOut

__all__ = [
    "FramesOfKeys",
    "FramesOut",
    "values_in_frames",
]
