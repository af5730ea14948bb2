"""A small stand-in for the example of the guides: its arguments, a real Trainer, two steps."""

from dataclasses import dataclass

import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Given:
    model_name_or_path: str = ""
    dataset_name: str = ""
    max_seq_length: int = 384
    doc_stride: int = 128


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.cross_entropy(self.layer(x).float(), labels)}


def main() -> None:
    _, arguments = HfArgumentParser((Given, TrainingArguments)).parse_args_into_dataclasses()
    arguments.max_steps, arguments.report_to, arguments.save_strategy = 2, [], "no"
    arguments.eval_strategy = "no"
    samples = [{"x": torch.randn(4), "labels": torch.tensor(i % 2)} for i in range(64)]
    Trainer(model=Model(), args=arguments, train_dataset=samples).train()
    print(f"trained: world {arguments.world_size}, bf16 {arguments.bf16}", flush=True)
    if torch.distributed.is_initialized():  # else a rank may abort at its end
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
