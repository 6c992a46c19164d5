"""Jobs to copy from, and the demo that kills two of them."""
