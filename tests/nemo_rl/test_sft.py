"""NeMo RL's own run_sft.py with our config and dataset, the whole script on a CPU; only its workers are stand-ins."""

import inspect
import json
import re
import runpy
import sys
from pathlib import Path

import nemo_rl
import pytest
import torch
from nemo_rl.algorithms import sft
from nemo_rl.algorithms.utils import get_tokenizer
from nemo_rl.distributed import virtual_cluster
from nemo_rl.models.policy import MegatronConfig
from nemo_rl.utils.config import load_config, parse_hydra_overrides, register_omegaconf_resolvers
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

from nemo_aopsd.baselines.solutions import AOPSDSolutions, SolutionProcessor
from nemo_aopsd.config.load import load_config as load_ours
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import student_messages
from nemo_aopsd.method.demonstrations import demonstrations
from nemo_aopsd.models.tokenizer import HFTokenizer

pytestmark = pytest.mark.nemo

REPO = Path(__file__).parents[2]
EMBEDDED = REPO / "nemo_aopsd/builtin"
CONFIG = REPO / "examples/configs/sft_nemo_rl.yaml"
SCRIPT = Path(nemo_rl.__file__).parents[1] / "examples/run_sft.py"
SWITCHES = {"add_bos": True, "add_eos": True, "add_generation_prompt": True}


def tiny():
    """The overrides of the tiny run, as the document has them."""
    text = (REPO / "docs/nemo_rl.md").read_text(encoding="utf-8")
    command = next(block for block in re.findall(r"```sh\n(.+?)```", text, re.DOTALL) if "run_sft.py" in block)
    words = command.replace("\\\n", " ").replace("$AOPSD", str(REPO)).split()
    return words[words.index(str(CONFIG)) + 1 :]


def container(*overrides):
    register_omegaconf_resolvers()
    tree = parse_hydra_overrides(load_config(str(CONFIG)), list(overrides))
    return OmegaConf.to_container(tree, resolve=True)


class Workers:
    """What run_sft.py asks of a Policy: it keeps the batches, and returns the loss of the embedded model."""

    def __init__(self, **kwargs):
        self.kwargs, self.batches = kwargs, []
        self.model = AutoModelForCausalLM.from_pretrained(EMBEDDED / "model", dtype=torch.float32)
        type(self).last = self

    @torch.no_grad()
    def train(self, data, loss_fn, timer=None, eval_mode=False, gbs=None, mbs=None):
        self.batches.append(data)
        logprobs = self.model(data["input_ids"]).logits[:, :-1].log_softmax(-1)
        chosen = logprobs.gather(-1, data["input_ids"][:, 1:, None])[..., 0]
        valid = (data["token_mask"][:, 1:] * data["sample_mask"][:, None]).sum()
        loss, metrics = loss_fn(chosen, data, data["sample_mask"].sum(), valid)
        self.losses = [*getattr(self, "losses", []), loss.item()]
        listed = {name: [value] for name, value in metrics.items()}
        return {"loss": loss, "grad_norm": torch.tensor(1.0), "all_mb_metrics": {**listed, "lr": [1e-4]}}

    def finalize_async_save(self, *_args, **_kwargs):
        """Asked by NeMo RL's next version."""

    def save_checkpoint(self, **kwargs):
        self.saved = kwargs

    def print_node_ip_and_gpu_id(self):
        pass

    def prepare_for_training(self):
        pass


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the stock script with overrides; the workers that it made."""
    if not SCRIPT.exists():
        pytest.skip(f"{SCRIPT} is missing: NeMo RL is installed without its examples")

    def main(*overrides):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--config", str(CONFIG), *overrides])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return Workers.last

    monkeypatch.setattr(sft, "Policy", Workers)
    monkeypatch.setattr(sft, "RayVirtualCluster", lambda **kwargs: kwargs)
    monkeypatch.setattr(virtual_cluster, "init_ray", lambda: None)
    monkeypatch.chdir(tmp_path)
    return main


def expected_row(problem):
    """Prompt and solution in ids: what the objective `sft` of the local engine trains on."""
    config = load_ours(REPO / "examples/configs/aopsd_tiny_cpu.yaml")
    tokenizer = HFTokenizer(AutoTokenizer.from_pretrained(EMBEDDED / "model"), [])
    prompt = tokenizer.render(student_messages(problem, "tiny"), None)
    return prompt, demonstrations([problem], [prompt], tokenizer, config)[0].tokens


def test_the_stock_script_trains_on_our_rows_and_masks_all_but_the_solution(run):
    workers = run(*tiny(), "data.shuffle=false", "sft.max_num_steps=2")
    assert len(workers.batches) == 2 and workers.kwargs["init_reference_model"] is False
    first = workers.batches[0]
    problems = load_problems(EMBEDDED / "data/train.jsonl")[:32]
    total, count = 0.0, 0
    for index, problem in enumerate(problems):
        prompt, solution = expected_row(problem)
        length = len(prompt) + len(solution)
        assert first["input_lengths"][index] == length
        assert first["input_ids"][index, :length].tolist() == prompt + solution
        assert first["token_mask"][index].nonzero().flatten().tolist() == list(range(len(prompt), length))
        logits = workers.model(torch.tensor([prompt + solution])).logits[0, len(prompt) - 1 : -1]
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(solution), reduction="sum").item()
        count += len(solution)
    assert solution[-1] == workers.model.config.eos_token_id
    assert workers.losses[0] == pytest.approx(total / count, rel=1e-5)


def test_the_stock_script_finds_every_key_also_to_validate_and_to_save(run):
    held_out = EMBEDDED / "data/heldout.jsonl"
    more = ["sft.max_num_steps=2", "sft.val_period=2", "sft.val_at_start=true", "sft.val_batches=1"]
    workers = run(*tiny(), *more, f"+data.validation.data_path={held_out}", "checkpointing.enabled=true")
    assert len(workers.batches) == 4  # validation, two steps, validation
    assert torch.equal(workers.batches[0]["input_ids"], workers.batches[3]["input_ids"])
    saved = Path(workers.saved["weights_path"]).parents[1]
    assert saved == Path("runs/sft_tiny/checkpoints/tmp_step_2").absolute()  # renamed when it is whole
    assert json.loads((Path("runs/sft_tiny/checkpoints/step_2/training_info.json")).read_text())["total_steps"] == 2


def test_the_schema_takes_it_with_complete_blocks():
    config, tree = sft.MasterConfig(**container()), container(*tiny())
    assert MegatronConfig.__required_keys__ <= config.policy["megatron_cfg"].keys()
    assert sft.SFTConfig.model_fields.keys() == container()["sft"].keys()
    assert config.data["max_input_seq_length"] == config.policy["max_total_sequence_length"]
    assert config.data["default"]["prompts"] == "default"  # an own key of ours survives NeMo RL's typed blocks
    local = load_ours(REPO / "examples/configs/aopsd_tiny_cpu.yaml")  # the tiny run is that of the local engine
    assert tree["policy"]["max_total_sequence_length"] == local.policy["max_total_sequence_length"]
    assert tree["policy"]["megatron_cfg"]["optimizer"]["lr"] == local.policy["optimizer"]["kwargs"]["lr"]
    assert tree["policy"]["train_global_batch_size"] == local.aopsd.num_prompts_per_step


# The dataset and its processor


def process(row, room, **switches):
    processor = SolutionProcessor()
    tokenizer = get_tokenizer({"name": str(EMBEDDED / "model")})
    return processor(row, None, tokenizer, room, 0, **{**SWITCHES, **switches})


@pytest.fixture
def row():
    return AOPSDSolutions(str(EMBEDDED / "data/train.jsonl"), prompts="tiny").dataset[0]


def test_a_solution_that_does_not_fit_is_cut_without_an_end_token(row, capsys):
    prompt, solution = expected_row(load_problems(EMBEDDED / "data/train.jsonl")[0])
    whole = process(row, len(prompt) + len(solution))
    assert whole["message_log"][1]["token_ids"].tolist() == solution and "cut so far" not in capsys.readouterr().out
    cut = process(row, len(prompt) + len(solution) - 1)
    assert cut["message_log"][1]["token_ids"].tolist() == solution[:-1]
    assert (cut["loss_multiplier"], cut["length"]) == (1.0, len(prompt) + len(solution) - 1)


def test_cut_solutions_are_counted_once_and_told_at_powers_of_two(capsys):
    data = AOPSDSolutions(str(EMBEDDED / "data/train.jsonl"), prompts="tiny").dataset
    processor, tokenizer = SolutionProcessor(), get_tokenizer({"name": str(EMBEDDED / "model")})
    for index in [*range(5), *range(5)]:  # two epochs
        prompt = len(processor(data[index], None, tokenizer, 384, index, **SWITCHES)["message_log"][0]["token_ids"])
        processor(data[index], None, tokenizer, prompt + 1, index, **SWITCHES)
    said = capsys.readouterr().out
    assert re.findall(r"end token: (\d+)", said) == ["1", "2", "4"] and "problem 'train-000-level3'" in said
    assert len(processor.cut) == 5


def test_what_cannot_be_heeded_is_refused(row, tmp_path):
    with pytest.raises(UserError, match=r"train.jsonl:1: problem 'train-000-level3': its prompt takes \d+ tokens"):
        process(row, 5)
    for name in SWITCHES:
        with pytest.raises(UserError, match=f"data.{name} is False.*Set data.{name}=true"):
            process(row, 384, **{name: False})
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps({"id": "q", "problem": "1 + 1?", "answer": "2"}) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"some.jsonl:1: problem 'q' has no `solution`"):
        AOPSDSolutions(str(path))


def test_the_script_passes_these_switches():
    """A later NeMo RL that passes others would have them refused or ignored."""
    source = SCRIPT.read_text(encoding="utf-8") if SCRIPT.exists() else pytest.skip("no examples")
    assert set(re.findall(r"(add_\w+)=data_config", source)) == set(SWITCHES)
    assert "add_loss_mask_to_message_log" in inspect.getsource(sft.sft_train)
