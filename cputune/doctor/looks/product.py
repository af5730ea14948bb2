"""How fast one core multiplies matrices in fp32 and in bf16, and with which oneDNN kernel.

Start it with ONEDNN_VERBOSE=1, so that oneDNN names its instruction set and its kernels.
"""

import json
import statistics
import sys
import time

SIZE = 768  # the width of BERT's hidden states
# Rows are those of BERT's hidden states: a matmul takes milliseconds. The median of the rounds
# is printed, after two for warm-up.
ROUNDS = 7


def main() -> None:
    """Multiply by turns, and print the median seconds of each type."""
    import torch

    torch.set_num_threads(1)
    matrices = {
        "fp32": torch.randn(SIZE, SIZE),
        "bf16": torch.randn(SIZE, SIZE).to(torch.bfloat16),
    }
    seconds: dict[str, list[float]] = {name: [] for name in matrices}
    with torch.no_grad():
        # A convolution goes to oneDNN whatever the CPU: it prints its instruction set.
        torch.nn.functional.conv2d(torch.randn(1, 16, 16, 16), torch.randn(16, 16, 3, 3))
        for turn in range(ROUNDS + 2):
            for name, matrix in matrices.items():
                begun = time.perf_counter()
                torch.nn.functional.linear(matrix, matrix)
                if turn >= 2:
                    seconds[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    sys.stdout.write(json.dumps({"seconds": medians}) + "\n")


if __name__ == "__main__":
    main()
