"""Where a study is kept, and what it is a study of.

- in memory, where nothing is named
- in an SQLite file of its own (``--study FILE.db``): one tuner at a time (``ledger``)
- in a database (``--storage ADDRESS``), with the tuners of other machines (``shared``)
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cputune import __version__
from cputune.documents import plain
from cputune.facts import HostFacts
from cputune.result import host_fingerprint
from cputune.tuner.book import Book, Identity
from cputune.tuner.ledger import Ledger
from cputune.tuner.options import StudyOptions
from cputune.tuner.space import build_space
from cputune.workload import Workload

if TYPE_CHECKING:
    from cputune.ranks.hosts import RankHosts

_DECIDE_SPEED = (
    "torch",
    "transformers",
    "accelerate",
    "intel_extension_for_pytorch",
    "oneccl_bind_pt",
)


def identity_of(
    options: StudyOptions, facts: HostFacts, workload: Workload, hosts: RankHosts | None = None
) -> Identity:
    """What must be the same for a study to be gone on with.

    In a database also what makes machines of one kind: the versions that decide a speed, and
    the plans that they can try. Their names and addresses do not.
    """
    identity: dict[str, Any] = {
        "host": host_fingerprint(facts),
        "hosts": None if hosts is None else list(hosts.names),
        "workload": workload.to_json(),
        "seed": options.seed,
        "knobs": None if options.knobs is None else sorted(options.knobs),
        "fix": {name: str(value) for name, value in sorted(options.fix.items())},
        "allow_slow_precision": options.allow_slow_precision,
        "steps_planned": options.steps_planned,
    }
    if options.storage is None:
        return identity
    if hosts is not None:
        identity["hosts"] = [host_fingerprint(of) for _, of in hosts.facts]
    packages = {name: facts.package(name) for name in _DECIDE_SPEED}
    space = build_space(
        facts,
        workload,
        vary=options.knobs,
        fix=options.fix,
        allow_slow_precision=options.allow_slow_precision,
        hosts=() if hosts is None else hosts.facts,
        interfaces=() if hosts is None else hosts.interfaces,
    )
    identity["versions"] = {
        "cputune": __version__,
        "python": None if facts.python is None else facts.python.rpartition(".")[0],
        **{name: found.version for name, found in packages.items() if found is not None},
    }
    identity["plans"] = {
        "count": len(space),
        "values": {knob.name: list(knob.values) for knob in space.knobs},
    }
    document: Identity = plain(identity)
    return document


def study_name(workload: Workload, identity: Identity) -> str:
    """The name of a study in a database: what is trained, and a digest of its identity.

    So machines of another kind, and those who ask for something else, have a study of their own.
    """
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    readable = re.sub(r"[^\w.-]+", "_", workload.name, flags=re.ASCII)[:80]
    return f"cputune {readable} {digest[:16]}"


def open_book(
    options: StudyOptions,
    workload: Workload,
    identity: Identity,
    *,
    say: Callable[[str], None],
    out_of_time: Callable[[], bool],
) -> Book:
    """The book of a study, wherever it is kept; for this user alone where it holds arguments.

    Raises CputuneError.
    """
    private = bool(workload.argv)
    if options.storage is None:
        return Ledger(options.study, resume=options.resume, private=private)
    from cputune.tuner.shared import SharedLedger

    return SharedLedger(
        options.storage,
        study_name(workload, identity),
        budget=options.budget,
        private=private,
        say=say,
        out_of_time=out_of_time,
    )
