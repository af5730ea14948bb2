"""The way of PEFT's examples: LoRA adapters on a causal model, trained by the Trainer."""

import argparse
from pathlib import Path

from datasets import load_dataset
from peft import LoraConfig, TaskType, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--grad_accum", type=int, default=2)
    parser.add_argument("--max_steps", type=int, default=30)
    parser.add_argument("--output_dir", default="adapter")
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.place / "llama")
    model = AutoModelForCausalLM.from_pretrained(args.place / "llama")
    lora = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=4,
        lora_alpha=8,
        lora_dropout=0.05,
        target_modules=["q_proj", "v_proj"],
    )
    model = get_peft_model(model, lora)
    model.print_trainable_parameters()
    data = load_dataset("json", data_files=str(args.place / "data/train.jsonl"), split="train")
    data = data.map(
        lambda rows: tokenizer(rows["text"], truncation=True, max_length=32),
        batched=True,
        remove_columns=data.column_names,
    )
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=args.output_dir,
            per_device_train_batch_size=args.batch_size,
            gradient_accumulation_steps=args.grad_accum,
            max_steps=args.max_steps,
            learning_rate=1e-3,
            report_to="none",
        ),
        train_dataset=data,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()
    model.save_pretrained(args.output_dir)


if __name__ == "__main__":
    main()
