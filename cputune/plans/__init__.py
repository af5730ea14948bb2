"""What is trained, the plans that can run it, and what decides which plans may be tried."""
