"""What is trained, each way to run it, and what decides which of them may be tried."""
