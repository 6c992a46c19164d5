"""Jobs to copy from, and the demo that kills one of them."""
