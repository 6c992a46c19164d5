"""How keys find their key groups."""

KEY_HASH = "spark-murmur3-42"
