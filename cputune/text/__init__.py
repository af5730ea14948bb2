"""Text that comes in and goes out: read with limits, without secrets, as people read it."""
