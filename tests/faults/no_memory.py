raise RuntimeError(
    "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 1099511627776 bytes."
)
