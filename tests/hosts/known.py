"""Synthetic machines after well-known ones, as lscpu, numactl and sysfs were published of them.

They are no recordings: ``machine(None, **KNOWN[name])`` builds what Linux shows there.
"""

from __future__ import annotations

from typing import Any

KNOWN: dict[str, dict[str, Any]] = {
    # AMD EPYC 7763, NPS4: CCDs of 8 cores and 32 MiB, two to a node
    # (AMD "HPC Tuning Guide for EPYC 7003", 56827).
    "milan-nps4": {
        "sockets": 2,
        "cores": 64,
        "smt": 2,
        "nodes": 8,
        "l3": 8,
        "l3_mib": 32,
        "like": "zen3",
    },
    # AMD EPYC 9654, NPS4: twelve CCDs of 8 cores and 32 MiB, three to a node
    # (AMD "HPC Tuning Guide for EPYC 9004", 58002).
    "genoa-nps4": {
        "sockets": 1,
        "cores": 96,
        "smt": 2,
        "nodes": 4,
        "l3": 8,
        "l3_mib": 32,
        "like": "zen4",
    },
    "genoa-nps1": {
        "sockets": 2,
        "cores": 96,
        "smt": 1,
        "nodes": 2,
        "l3": 8,
        "l3_mib": 32,
        "like": "zen4",
    },
    # Intel Xeon CPU Max 9480, flat mode, quadrant: 56 cores, DDR5, and 64 GiB of HBM without
    # CPUs to a socket (Lenovo LP1810; Intel 354227, "Xeon CPU Max Series Configuration Guide").
    "xeon-max-flat": {
        "sockets": 2,
        "cores": 56,
        "smt": 2,
        "nodes": 2,
        "memory_only_nodes": 2,
        "like": "xeon-max",
        "l3_mib": 112,
    },
    # Intel Xeon Platinum 8480+, SNC4: 14 cores to a node, and one L3 for the whole socket.
    "sapphire-rapids-snc4": {
        "sockets": 2,
        "cores": 56,
        "smt": 2,
        "nodes": 8,
    },
    # Two sockets with a CXL memory expander each
    # (https://stevescargall.com/blog/2022/12/how-to-map-a-cxl-endpoint-to-a-cpu-socket-in-linux/).
    "cxl": {
        "sockets": 2,
        "cores": 52,
        "smt": 2,
        "nodes": 2,
        "memory_only_nodes": 2,
    },
    # Intel Xeon 6980P, SNC3: 128 cores in three compute dies, a node each, 504 MiB of L3
    # (Intel ARK 240777).
    "granite-rapids-snc3": {
        "sockets": 2,
        "cores": 128,
        "smt": 2,
        "nodes": 6,
        "like": "granite-rapids",
        "l3_mib": 504,
    },
    # Intel Xeon 6780E: 144 E cores without SMT; no AVX-512, no AMX (Intel ARK 240362).
    "sierra-forest": {
        "sockets": 2,
        "cores": 144,
        "smt": 1,
        "nodes": 2,
        "like": "sierra-forest",
        "l3_mib": 108,
    },
    # AMD EPYC 9965 (Turin dense), NPS1: 192 Zen 5c cores, twelve CCDs of 16 and 32 MiB
    # (AMD "HPC Tuning Guide for EPYC 9005").
    "turin-dense": {
        "sockets": 2,
        "cores": 192,
        "smt": 2,
        "nodes": 2,
        "l3": 16,
        "l3_mib": 32,
        "like": "zen5",
    },
    # Two Graviton4 of 96 Neoverse V2 each, without SMT (AWS "Graviton technical guide").
    "graviton4": {
        "sockets": 2,
        "cores": 96,
        "smt": 1,
        "nodes": 2,
        "like": "graviton4",
        "l3_mib": 36,
    },
    # NVIDIA Grace CPU Superchip: two of 72 Neoverse V2 ("Grace Performance Tuning Guide").
    "grace": {
        "sockets": 2,
        "cores": 72,
        "smt": 1,
        "nodes": 2,
        "like": "graviton4",
        "l3_mib": 114,
        "node_gib": 240,
    },
}
