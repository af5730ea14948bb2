"""Rank 1 dies; rank 0 would wait for it for ever."""

import os
import sys
import time

if os.environ.get("RANK") == "1":
    sys.exit("rank 1 gives up")
time.sleep(600)
