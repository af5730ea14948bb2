"""The way of TRL's dpo.py: pairs of answers, DPOConfig, DPOTrainer; a reference model beside."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, ModelConfig, ScriptArguments, TrlParser


def pair(row):
    return {"prompt": row["text"], "chosen": row["sentence2"], "rejected": row["sentence1"]}


if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, DPOConfig, ModelConfig))
    script, arguments, model = parser.parse_args_and_config()
    data = load_dataset("json", data_files=script.dataset_name, split="train")
    trainer = DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model.model_name_or_path),
        args=arguments,
        train_dataset=data.map(pair, remove_columns=data.column_names),
        processing_class=AutoTokenizer.from_pretrained(model.model_name_or_path),
    )
    trainer.train()
    trainer.save_model(arguments.output_dir)
