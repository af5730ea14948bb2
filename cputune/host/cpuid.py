"""The CPUID instruction, for the few facts that Linux keeps out of /proc/cpuinfo."""

from __future__ import annotations

import os
import struct
import sys

Registers = tuple[int, int, int, int]
"""EAX, EBX, ECX, EDX."""

_ROUTINE = bytes.fromhex(
    "53"  # push rbx, which CPUID overwrites and the caller owns
    "89f8"  # mov eax, edi (leaf)
    "89f1"  # mov ecx, esi (subleaf)
    "4989d0"  # mov r8, rdx (where the answer goes)
    "0fa2"  # cpuid
    "418900"  # mov [r8], eax
    "41895804"  # mov [r8+4], ebx
    "41894808"  # mov [r8+8], ecx
    "4189500c"  # mov [r8+12], edx
    "5b"  # pop rbx
    "c3"  # ret
)
"""``void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t answer[4])``, System V x86-64."""

_SYS_ARCH_PRCTL, _ARCH_CPUID_GET = 158, 0x1011


def cpuid(leaf: int, subleaf: int) -> Registers | None:
    """Ask the processor; None where that is no x86-64 Linux, or where it is forbidden.

    Root has /dev/cpu/0/cpuid (cpuid(4)). Everybody else may execute the instruction,
    which takes a page of memory that can hold code; hardened systems refuse it.
    """
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return None
    return _from_device(leaf, subleaf) or _execute(leaf, subleaf)


def _from_device(leaf: int, subleaf: int) -> Registers | None:
    try:
        descriptor = os.open("/dev/cpu/0/cpuid", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _registers(os.pread(descriptor, 16, leaf | subleaf << 32))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _execute(leaf: int, subleaf: int) -> Registers | None:
    try:
        import ctypes
        import mmap

        # 0 means that CPUID raises SIGSEGV in this process (arch_prctl(2)).
        if ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _ARCH_CPUID_GET) == 0:
            return None
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except (ImportError, OSError, AttributeError):
        return None
    page.write(_ROUTINE)
    view = ctypes.c_char.from_buffer(page)
    answer = ctypes.create_string_buffer(16)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
    kind(ctypes.addressof(view))(leaf, subleaf, ctypes.addressof(answer))
    del view
    page.close()
    return _registers(answer.raw)


def _registers(raw: bytes) -> Registers | None:
    if len(raw) != 16:
        return None
    a, b, c, d = struct.unpack("<4I", raw)
    return a, b, c, d
