"""The way of TRL's sft.py: TrlParser, SFTConfig (bf16 unless told otherwise), SFTTrainer."""

from datasets import load_dataset
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser

if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    script, arguments, model = parser.parse_args_and_config()
    data = load_dataset("json", data_files=script.dataset_name, split="train")
    trainer = SFTTrainer(
        model=model.model_name_or_path,
        args=arguments,
        train_dataset=data.select_columns(["text"]),
    )
    trainer.train()
    trainer.save_model(arguments.output_dir)
