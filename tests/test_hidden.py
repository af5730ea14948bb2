"""Secrets in arguments: found by shape and by flag, never written down."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden_texts import Golden
from rows import every_row
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune
from cputune import Plan, Result, Step, UsageError, Workload
from cputune.emitters import FORMATS
from cputune.host.process import keep_secrets
from cputune.records.steps import Crashed
from cputune.text.hidden import hide_arguments, looks_random, looks_secret, without_secrets

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"
HEX = "0123456789abcdef0123456789abcdef01234567"
PLAIN = [
    ("--tokenizer_name", "bert-base-uncased"),
    ("--max_new_tokens", "128"),
    ("--betas", "0.9,0.98", "-1e-3", "[2, 3]", "10:30"),
    ("--pad_token", "<pad>"),
    ("--use_auth_token", "True"),
    ("--teacher", "sentence-transformers/all-MiniLM-L6-v2"),
    ("--output_dir", "/data/runs/2024-01-01_bert-large-uncased-whole-word"),
    ("--corpus", "/proc/self", "--weights_file", "runs/last.bin"),
    ("--text", "${HUB_TOKEN}"),
    ("--model-revision", HEX),
    ("--label_names", "start_positions", "end_positions"),
    ("--do_train", "-v", "-j4", "--optim=adamw_torch", "--lr-scheduler-type", "cosine"),
    ("model.pad_token=<pad>", "trainer.max_steps=10"),
]


@every_row("words", PLAIN)
def test_what_is_known_to_be_harmless_stays(words: tuple[str, ...]) -> None:
    assert hide_arguments(("train.py", *words)) == (("train.py", *words), {})


@every_row(
    "words",
    [
        ("--nick", "Xk29fjQ", "--who", "Sweet-potato"),
        ("Xk29fjQ", "--fast", "Wq7", "--scheduler=cosine"),
        ("--url", "https://example.com/Xk29fjQ", "--user", "jane"),
        ("--use_auth", "False", "--hub_token", "$HF_TOKEN", "--ssh_key", "~/.ssh/id_rsa"),
        ("--num_pass", "2", "--pwd", "/workspace", "--credentials", "conf/account.json"),
    ],
)
def test_what_neither_name_nor_shape_says_is_its_owners(words: tuple[str, ...]) -> None:
    assert hide_arguments(("train.py", *words))[0] == ("train.py", *words)


@every_row(
    ("words", "secret"),
    [
        (("-p", "hunter2"), "hunter2"),
        (("-phunter2",), "hunter2"),
        (("-p", "S3cret!"), "S3cret!"),
        (("--pat", "qwertzuiop"), "qwertzuiop"),
        (("--github_pat=abcd1234",), "abcd1234"),
        (("--pin", "4711"), "4711"),
        (("--user-pin", "93"), "93"),
        (("--hubtoken", "abc"), "abc"),
        (("--hftoken=abc",), "abc"),
        (("--apitoken", "abc"), "abc"),
        (("--wandbkey", "abc"), "abc"),
        (("--accesskey", "abc"), "abc"),
        (("--secretkey", "abc"), "abc"),
        (("--pswd", "abc"), "abc"),
        (("--mfa", "123456"), "123456"),
        (("--otp-code", "12"), "12"),
        (("--connection-string", "Server=db"), "Server=db"),
        (("-u", "jane:letmein"), "letmein"),
        (("--userpass", "jane:letmein"), "letmein"),
    ],
)
@every_row("start", [("train.py",), ("python", "train.py"), ("python", "-m", "a.b")])
def test_short_and_joined_names_are_hidden(
    start: tuple[str, ...], words: tuple[str, ...], secret: str
) -> None:
    shown, found = hide_arguments((*start, *words))
    assert secret not in " ".join(shown)
    assert [*found.values()] in ([secret], [f"jane:{secret}"])


PUBLIC = """
python run_qa.py --model_name_or_path google-bert/bert-base-uncased --dataset_name squad --do_train --learning_rate 3e-5
python main.py -a resnet50 --dist-url tcp://127.0.0.1:29500 --dist-backend gloo --multiprocessing-distributed --world-size 1 --rank 0 /data/imagenet
torchrun --nproc_per_node=8 train.py --model resnext50_32x4d --epochs 100
torchrun --standalone --nproc_per_node=4 train.py config/train_gpt2.py --batch_size=32 --compile=False
python train.py /data/imagenet --model seresnet34 --sched cosine --epochs 150 --warmup-epochs 5 --lr 0.4 --reprob 0.5 --remode pixel --batch-size 256 --amp -j 4 --pin-mem
python train.py --data coco.yaml --weights yolov5s.pt --img 640 --batch-size 16 --hyp hyp.scratch-low.yaml
accelerate launch --config_file default.yaml train_text_to_image.py --pretrained_model_name_or_path CompVis/stable-diffusion-v1-4 --resolution=512 --mixed_precision fp16 --validation_prompt=a
deepspeed --num_gpus 2 run_clm.py --deepspeed ds_config.json --per_device_train_batch_size 1 --fp16
mpirun -np 4 -ppn 2 -genv OMP_NUM_THREADS=23 -f hostfile python3 run_qa.py --no_cuda --ddp_backend ccl --use_ipex
mpirun -np 16 -H server1:4,server2:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 python train.py
srun -N 2 -p spr56c --ntasks-per-node 2 python train.py -p bf16
python -m torch.distributed.launch --nproc_per_node 8 tools/train_net.py --config-file configs/e2e_faster_rcnn_R_50_FPN_1x.yaml SOLVER.IMS_PER_BATCH 2
python train.py -p resnet50 -b 64 -e 30
python train.py -p experiments/base -c config.json -d 0
python train.py -p patience -l 0.1
python train.py -p 29500 --host localhost
fairseq-train data-bin/wmt14 --arch transformer --optimizer adam --adam-betas (0.9,0.98) --clip-norm 0.0 --max-tokens 4096
python finetune.py --pin_memory true --pin 0-27 --num_workers 8
python train.py --pat *.txt --out runs/exp3
python preprocess.py --pattern (\\d+)_train --key text --sort_key length
python train.py --tokenizer_name gpt2 --pad_token <pad> --bos_token <s> --mask_token [MASK]
python train.py hydra.run.dir=outputs/2024-01-01 model=resnet18 trainer.max_epochs=10 optimizer.betas=[0.9,0.999]
python train.py --hub_model_id user/bert-finetuned-squad --push_to_hub --hub_strategy every_save
python run_mlm.py --model_revision 8d04c767d9d4c14d929ce7ad8e067b80c74dbdd4 --train_file data/train.txt
python train.py --passes 3 --num_pass 2 --two_pass True --keys image label
python train.py --user jane --account proj_1234 --partition cpu_p6
python -m torch.backends.xeon.run_cpu --ninstances 2 --ncores-per-instance 28 train.py --lr 1e-3
numactl -C 0-27 -m 0 python train.py --device cpu --precision bf16
python train.py --wandb_project mnist-sweep --wandb_run_name lr0.001-bs64 --wandb_mode offline
python train.py -u 10:30 -t 0.5 -k 5 -s 1337 -n run42
python train_dreambooth.py --instance_prompt=a_photo_of_sks_dog --class_data_dir=class --num_class_images=200
""".strip().splitlines()  # noqa: E501


def test_thirty_command_lines_as_people_publish_them_stay() -> None:
    lines = [tuple(line.split()) for line in PUBLIC]
    assert len(lines) >= 30
    assert [line for line in lines if hide_arguments(line) != (line, {})] == []


def test_words_of_a_launcher_stay(monkeypatch: pytest.MonkeyPatch, workdir: Path) -> None:
    Path("train.py").touch()
    monkeypatch.setattr(os, "environ", dict(os.environ))
    launcher = ("mpirun", "-n", "2", "--bind-to", "none", "-genv", "CCL_ATL_TRANSPORT", "ofi")
    job = Workload.script((*launcher, "python", "train.py", "--nick", "ofi"), secret=["nick"])
    assert job.launch == (*launcher, "python", "train.py", "--nick", "${NICK_SECRET}")
    assert job.hidden_arguments == ("nick",)
    assert job.hide("ofi in profile", {"NICK_SECRET": "ofi"}) == "(hidden) in profile"


def test_lists_and_masks_of_cpus_are_no_keys() -> None:
    for text in ("0-55,112-167", "[0x3fff0000000000000000000000,0x3fff]", "granularity=fine,1,0"):
        assert not looks_random(text)
        assert not looks_secret(text)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Workload:
    monkeypatch.setenv("HUB_TOKEN", "what the environment had before")
    typed = ["train.py", "--hub_token", TOKEN, "--output_dir", "a $b"]
    keep_secrets(typed)
    return Workload.script(typed)


def test_a_trial_is_given_the_value(job: Workload, golden: Golden) -> None:
    assert job.filled(job.argv, os.environ)[2] == TOKEN
    with golden.raises(UsageError):
        job.filled(job.argv, {})


def test_what_a_trial_printed_of_its_environment_is_cleaned_too(job: Workload) -> None:
    variables = {
        "HUB_TOKEN": TOKEN,
        "WANDB_API_KEY": HEX,
        "MLFLOW_TRACKING_PASSWORD": "swordfish",
        "http_proxy": "http://jane:pw@proxy:3128",
        "SSH_AUTH_SOCK": "/tmp/agent",
        "OMP_NUM_THREADS": "2",
    }
    text = job.hide(f"environ({variables!r})", variables)
    assert not [v for v in (TOKEN, HEX, "swordfish", "jane") if v in text]
    assert "'OMP_NUM_THREADS': '2'" in text
    assert "/tmp/agent" in text


def test_a_long_word_is_looked_at_in_no_time() -> None:
    for word in ("--" + "a_" * 5000, "a." * 5000, "a-" * 5000, "Ab1" * 5000, "://a" * 3000):
        assert hide_arguments(("t.py", word, word)) is not None
        assert without_secrets(word, {word: "value"}) is not None


RUN = "Zq7Wm2Rk9Tb4Xc6V"
_FLAGS = """
jwt_token pass smtp-pass cookie pass-phrase passcode pw otp pat session_id registry-auth hf-key user
password passwd db.password api-key apikey secret client_secret access_key private-key bearer jwt
dsn sas webhook auth credentials hub_token token wandb_key login hf_token github-token pin p nick
note who
"""
FLAGS = _FLAGS.split()
BODY = "\n".join(
    "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj" for _ in range(4)
)
PLANTED = [
    *(((f"--{flag}", f"{n}{RUN}{n}"), f"{n}{RUN}{n}") for n, flag in enumerate(FLAGS)),
    *(
        ((f"--{flag}", f"swordfish{flag}"), f"swordfish{flag}")
        for flag in ("pass", "pw", "otp", "smtp-pass")
    ),
    (("--user", "jane:letmein"), "letmein"),
    (("--otp", "493817"), "493817"),
    (("--password", "123456"), "123456"),
    (("--url", f"https://oauth2:{RUN}@git.example/x"), RUN),
    (("--url", f"https://api.example/x?access_token={RUN}"), RUN),
    (("--hook", f"https://hooks.slack.com/services/T0/B0/{RUN}"), RUN),
    (("--storage", f"postgresql://me:{RUN}@db/x"), RUN),
    (("--key", f"-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----"), BODY[:40]),
    (("--key", BODY), BODY[:40]),
    (("--name", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc"), "eyJzdWI"),
    (("--name", "AKIAIOSFODNN7EXAMPLE"), "AKIAIOSF"),
    (("--name", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"), "K7MDENG"),
    (("--name", "AIzaSyA1234567890abcdefghijklmnopqrstuv"), "AIzaSyA"),
    (("--name", f"ghp_{RUN}{RUN}"), RUN),
    (("--name", f"glpat-{RUN}{RUN}"), RUN),
    (("--name", f"sk-proj-{RUN}{RUN}"), RUN),
    (("--name", f"xoxb-{RUN}"), RUN),
    (("--name", f"AGE-SECRET-KEY-1{RUN}"), RUN),
    (("--header", f"Authorization: Bearer {RUN}"), RUN),
    (("--conf", f"AccountKey={RUN}=="), RUN),
    (("trainer.api_key=" + RUN,), RUN),
    (("+logger.otp=" + RUN,), RUN),
    ((f"--smtp_pass={RUN}",), RUN),
]
"""Sixty kinds and more: words of a command, and what of them must be found nowhere."""


def tuned_with_failures(job: Workload, said: str, folder: Path) -> Result:
    """A study in this folder, all plans of which fail with these words but the launch as typed."""

    class Failing(FakeRunner):
        def steps(self, plan: Plan) -> Iterator[Step]:
            if plan.as_found:
                yield from super().steps(plan)
                return
            error = Crashed(f"it says {said}", details=said)
            error.cleaned(lambda text: job.hide(text, os.environ))
            raise error

    study = {"budget": 3, "study": folder / "s.db"}
    result = cputune.tune(job, facts=SMALL.facts, runner=Failing(truthful()), **study)
    result.save(folder / "cputune.json")
    return result


def test_of_sixty_kinds_planted_none_is_found_in_any_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before, 14 of the flags' values stood in the result, and keys' bodies in what had failed."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert len({words for words, _ in PLANTED}) >= 60
    argv = ["train.py", *(word for words, _ in PLANTED for word in words)]
    job = Workload.script(argv)
    keep_secrets(argv)
    said = "\n".join(" ".join(words) for words, _ in PLANTED) + f"\n{BODY}"

    result = tuned_with_failures(job, said, tmp_path)
    assert cputune.Result.load(tmp_path / "cputune.json").workload.argv == job.argv
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"s.db": 0o600, "cputune.json": 0o600}, "for the user alone"
    result.report(tmp_path / "page.html")
    outputs = {path.name: path.read_text(errors="replace") for path in tmp_path.iterdir()}
    for format in FORMATS:
        files = cputune.emit(result, format)
        outputs[format] = "".join((*(file.text for file in files), *files[0].notes))
        assert "HUB_TOKEN" in files[0].text, "the launch reads the variable"
        assert any("HUB_TOKEN" in note for note in files[0].notes)
    assert "it says" in outputs["cputune.json"]
    for words, kept in PLANTED:
        assert [name for name, text in outputs.items() if kept in text] == [], words[0]


def test_a_key_whose_beginning_was_cut_off_is_hidden() -> None:
    tail = f"{BODY}\n-----END PRIVATE KEY-----\nValueError: no"
    cleaned = without_secrets(tail, {})
    assert not [line for line in BODY.splitlines() if line in cleaned]
    assert "ValueError: no" in cleaned


def test_long_paths_and_digests_are_no_keys() -> None:
    path = "/home/JaneDoe/projects/Experiment12/src/transformers/models/bert/modeling/Bert2"
    digest = "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0"
    assert without_secrets(f"{path} {digest}", {}) == f"{path} {digest}"


def test_a_secret_that_a_variable_holds_bears_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "MY_HUB": "swordfish-and-more"})
    before = dict(os.environ)
    job = Workload.script(["train.py", "--hub_token", "swordfish-and-more"])
    assert dict(os.environ) == before
    assert job.argv == ("train.py", "--hub_token", "${MY_HUB}")
    assert job.filled(job.argv, os.environ)[-1] == "swordfish-and-more"
