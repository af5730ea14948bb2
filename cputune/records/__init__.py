"""What is asked for, and what was measured: records that every later step reads."""
