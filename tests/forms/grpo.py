"""GRPO of TRL: samples, rewards, a loss that begins near zero."""

import sys

import datasets
from trl import GRPOConfig, GRPOTrainer

prompts = datasets.Dataset.from_list([{"prompt": f"w{n % 60} w{n % 7}"} for n in range(128)])
GRPOTrainer(
    model=f"{sys.argv[1]}/llama",
    reward_funcs=lambda completions, **_: [float(len(one) % 7) for one in completions],
    args=GRPOConfig(
        output_dir="trained",
        use_cpu=True,
        report_to="none",
        max_steps=20,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
    ),
    train_dataset=prompts,
).train()
