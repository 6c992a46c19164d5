"""A stopped query goes back to an earlier checkpoint, with Spark's log and state; a preview shows what is lost."""

from holdfast.spark.savepoints.rollback.previewing import (
    RollBackPoint,
    RollBackPreview,
    preview_roll_back,
    roll_back_points,
)
from holdfast.spark.savepoints.rollback.rolling_back import roll_back

__all__ = ["RollBackPoint", "RollBackPreview", "preview_roll_back", "roll_back", "roll_back_points"]
