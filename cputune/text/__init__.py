"""Text that comes in and goes out: parsing with limits, hiding of secrets, formatting."""
