"""The machine changes while it is tuned: CPUs that go, in a kernel that may be told to."""

from __future__ import annotations

import json

import pytest
from vm.guest import Guest

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]

TRY = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from random import Random
from faults.machine import MACHINE
outcome = MACHINE[sys.argv[1]](Path(sys.argv[2]), Random(1))
print(json.dumps(asdict(outcome)))
"""


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("a CPU goes offline", "offline"),
        ("the cpuset shrinks to one CPU", "cpuset"),
        ("a rank takes the memory of its control group", "memory"),
    ],
)
def test_a_study_goes_on_or_ends_in_words(guest: Guest, fault: str, place: str) -> None:
    guest.run(f"cat > /tmp/try.py << 'END'\n{TRY}\nEND")
    settings = "FAULTS_MAY_OFFLINE=1 FAULTS_PATIENCE=4 PYTHONPATH=/project/tests"
    ended = guest.run(
        f"{settings} python3 /tmp/try.py '{fault}' /tmp/faults-{place}", timeout_seconds=3000
    )
    outcome = json.loads(ended.stdout.splitlines()[-1])
    assert outcome["why"] == ""
    assert outcome == {"lost": 0, "left": [], "why": "", "tried": True}
