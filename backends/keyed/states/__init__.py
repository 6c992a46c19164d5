"""What users call: states and timers over tables, by batch of keys or by the current key."""
