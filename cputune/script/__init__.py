"""What people type after ``--``, read: which script Python runs, and who starts it today."""

from __future__ import annotations

from cputune.script.look import require_trainable, script_file, script_text
from cputune.script.typed import Typed, read_typed

__all__ = ["Typed", "read_typed", "require_trainable", "script_file", "script_text"]
