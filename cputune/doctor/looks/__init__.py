"""Scripts that ``doctor --deep`` runs in children. Each stands alone: the standard library,
torch, and a line of JSON on stdout after each step, so that what a crash leaves is not lost.
"""
