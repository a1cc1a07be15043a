"""Parameters against published counts and transformers' own models; bytes of two configs by hand."""

import re
from dataclasses import replace
from functools import cache

import pytest

from nemo_aopsd.cluster.doctor import fit, memory
from nemo_aopsd.cluster.doctor.model import read_size
from nemo_aopsd.cluster.doctor.result import gigabytes
from nemo_aopsd.config.load import load_config
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.config_json import find_published, parse
from tests import REPO

CONFIGS = REPO / "examples/configs"
QWEN3_4B, QWEN3_8B, QWEN3_14B, QWEN3_32B, QWEN3_30B_A3B = (
    find_published(f"Qwen/Qwen3-{size}") for size in ("4B", "8B", "14B", "32B", "30B-A3B")
)
GPU, HOST = 81559 * 2**20, 2 * 10**12


@cache
def layout_of(name, *overrides):
    return memory.read_layout(load_config(CONFIGS / name, overrides))


def sizes(content, layout):
    return {item.name: item.size for item in memory.items(read_size(content), layout)}


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("mistral", {}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {}),
        ("qwen3", {"attention_bias": True}),
        ("qwen3_moe", {}),
        ("qwen3_moe", {"mlp_only_layers": [0], "tie_word_embeddings": True}),
        ("qwen3_moe", {"decoder_sparse_step": 2}),
    ],
)
def test_parameters_are_those_of_the_model_that_transformers_builds(family, more):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    content = {
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 40,
        "vocab_size": 50,
        "tie_word_embeddings": False,
        **({"head_dim": 10} if family != "qwen2" else {}),
        **({"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8} if family == "qwen3_moe" else {}),
        **more,
    }
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **content))
    assert read_size(parse({"model_type": family, **content}, "config.json")).total == sum(
        p.numel() for p in model.parameters()
    )


def test_an_unknown_family_is_not_guessed():
    with pytest.raises(UserError, match="qwen3_5"):
        read_size(parse({"model_type": "qwen3_5"}, "config.json"))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("HuggingFaceTB/SmolLM2-135M", 134_515_008),
        ("Qwen/Qwen3-4B-Instruct-2507", 4_022_468_096),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-14B", 14_768_307_200),
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen/Qwen3-235B-A22B", 235_093_634_560),
    ],
)
def test_architectures_have_the_published_parameters(name, count):
    assert read_size(find_published(name)).total == count


def test_bytes_of_qwen3_4b_on_8_gpus_by_hand():
    found = sizes(QWEN3_4B, layout_of("aopsd_qwen3_4b_megatron.yaml"))
    # a layer: 26,214,656 attention + 74,711,040 MLP, halved by TP 2, and 5,120 norms; embedding 388,956,160, halved
    shard = 36 * (100_925_696 // 2 + 5_120) + (388_956_160 + 2_560) // 2
    assert shard == 2_011_326_208
    assert found["weights"] == 2 * shard
    assert found["gradients"] == 4 * shard
    assert found["optimizer"] == 10 * shard / 4  # 8 GPUs, TP 2
    kept = 36 * 2 * 2560 * 16384 / 2
    # both norms' inputs and outputs; q, k before their norms and after rotation, v, output; gate, value twice, product
    layer = 2 * (4 * 2560 + 3 * 4096 + 3 * 1024 + 5 * 9728)
    assert found["activations"] == kept + 2 * layer * 16384 / 2
    assert found["logits"] == 2 * (151936 / 2) * (2 * 16384 + 4 * 2048)
    assert found["vLLM weights"] == 8_044_936_192
    assert found["KV, longest row"] == 147_456 * 16384
    assert found["reference weights"] == found["student aside"] == 8 * 2 * shard
    assert found["pinned teacher bank"] == found["pinned student bank"] == 8 * 8_044_936_192
    assert "FP8 weights" not in found


def test_bytes_of_qwen3_30b_a3b_on_16_gpus_by_hand():
    found = sizes(QWEN3_30B_A3B, layout_of("aopsd_qwen3_30b_a3b.yaml"))
    # TP 2, PP 2, EP 8: 24 layers; attention 18,874,624 and embedding 311,164,928 halved, router 262,144, norms 4,096
    shared = 24 * (18_874_624 // 2 + 262_144 + 4_096) + 311_164_928 // 2
    experts = 24 * 128 * 3 * 2048 * 768 // 8
    assert (shared, experts) == (388_467_712, 1_811_939_328)
    assert found["weights"] == 2 * (shared + experts)
    assert found["optimizer"] == 10 * (shared / 4 + experts / 1)  # 16 / (2 x 2) copies; 16 / (8 x 2) of experts
    assert found["KV, longest row"] == 98_304 / 4 * 16384
    assert found["vLLM weights"] == 2 * 30_532_122_624 / 4


def test_sums_by_place_and_turn():
    rows = memory.items(read_size(QWEN3_4B), layout_of("aopsd_qwen3_4b_megatron.yaml"))
    by_name = {row.name: row.size for row in rows}
    scorer = by_name["vLLM's row scorer"]
    assert scorer == 1024 * 151936 * 14  # bf16 and three times float32
    expected = by_name["vLLM weights"] + scorer + 4e9 + by_name["KV, longest row"] + 2.5e9
    assert memory.total(rows, "gpu", "sampling") == expected
    trainer = ("weights", "gradients", "optimizer", "activations", "logits")
    assert memory.total(rows, "gpu", "training") == sum(by_name[name] for name in trainer) + 2.5e9 + 1.5e9


@pytest.mark.parametrize(
    ("override", "name", "ratio"),
    [
        ("policy.megatron_cfg.distributed_data_parallel_config.grad_reduce_in_fp32=false", "gradients", 0.5),
        ("cluster.num_nodes=2", "optimizer", 0.5),
        ("policy.generation.vllm_cfg.tensor_parallel_size=8", "KV, longest row", 1 / 8),
        ("policy.generation.vllm_cfg.tensor_parallel_size=16", "KV, longest row", 1 / 8),  # 8 key heads: repeated
        ("policy.generation.vllm_cfg.tensor_parallel_size=2", "pinned teacher bank", 0.5),
        ("policy.megatron_cfg.context_parallel_size=2", "activations", 0.5),
        ("policy.megatron_cfg.optimizer.optimizer_cpu_offload=true", "optimizer", 1),
    ],
)
def test_what_a_setting_changes(override, name, ratio):
    file = "aopsd_qwen3_4b_megatron.yaml"
    before, after = sizes(QWEN3_4B, layout_of(file)), sizes(QWEN3_4B, layout_of(file, override))
    assert after[name] == pytest.approx(ratio * before[name])


def test_rows_grouped_by_a_budget_of_tokens_without_packing_take_what_it_says():
    grouped = "policy.sequence_packing.enabled=false", "policy.dynamic_batching.enabled=true"
    layout = layout_of("aopsd_qwen3_4b_megatron.yaml", *grouped, "policy.dynamic_batching.train_mb_tokens=65536")
    assert layout.pack_tokens == 65536


def test_fp8_keeps_quantised_weights_beside_and_without_recomputation_every_layer_is_kept():
    assert sizes(QWEN3_4B, layout_of("aopsd_qwen3_4b_megatron_fp8.yaml"))["FP8 weights"] == 2 * 2_011_326_208
    file, key = "aopsd_qwen3_4b_megatron.yaml", "policy.megatron_cfg.activation_checkpointing=false"
    heads_and_mlp, norms = 2 * (3 * 4096 + 3 * 1024 + 5 * 9728) * 16384, 2 * 4 * 2560 * 16384
    assert sizes(QWEN3_4B, layout_of(file, key))["activations"] == (36 + 2) * (heads_and_mlp + norms) / 2
    whole = layout_of(file, key, "policy.megatron_cfg.sequence_parallel=false")  # each rank has the norms' tensors
    assert sizes(QWEN3_4B, whole)["activations"] == (36 + 2) * (heads_and_mlp / 2 + norms)
    selective = layout_of(file, "policy.megatron_cfg.recompute_granularity=selective")
    assert selective == layout_of(file, key) != layout_of(file)


def test_recomputing_nothing_is_offered_where_it_fits_by_hand():
    """Kept are 36 layers and not 36 inputs; a tenth of the GPU has to stay free."""
    size, layout = read_size(QWEN3_4B), layout_of("aopsd_qwen3_4b_megatron.yaml")
    layer, an_input = 2 * (4 * 2560 + 3 * 4096 + 3 * 1024 + 5 * 9728) * 16384 / 2, 2 * 2560 * 16384 / 2
    need = memory.total(memory.items(size, layout), "gpu", "training") + 36 * (layer - an_input)
    assert need == pytest.approx(73.5e9, rel=1e-3)
    assert fit.unrecomputed(size, layout, need / 0.9 + 1) == pytest.approx(need)
    assert fit.unrecomputed(size, layout, need / 0.9 - 1e3) is None
    for change in ({"recompute": False}, {"pp": 2}, {"cp": 2}, {"fp8": True}):
        assert fit.unrecomputed(size, replace(layout, **change), 1e12) is None, change
    assert fit.unrecomputed(read_size(QWEN3_30B_A3B), layout, 1e12) is None
    told, untold, unknown = (fit.check_cluster(size, layout, gpu, HOST)[0][0].found for gpu in (GPU, 80 * 10**9, None))
    offer = "; policy.megatron_cfg.activation_checkpointing=false would fit, by estimate: 73.5 GB of 85.5 GB"
    assert told == "31.3 GB a GPU" + offer and untold == unknown == "31.3 GB a GPU"


def severities(content, layout, machine):
    checks, _ = fit.check_cluster(read_size(content), layout, *machine)
    assert all(bool(check.remedy) == (check.severity != "ok") for check in checks)
    return {check.name.removeprefix("memory: "): check.severity for check in checks}


SHIPPED = {
    **{"4b_megatron": QWEN3_4B, "4b_megatron_fp8": QWEN3_4B, "8b": QWEN3_8B, "14b": QWEN3_14B, "32b": QWEN3_32B},
    "30b_a3b": QWEN3_30B_A3B,
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_configs_fit_an_h100(name):
    found = severities(SHIPPED[name], layout_of(f"aopsd_qwen3_{name}.yaml"), (GPU, HOST))
    assert set(found.values()) == {"ok"}, found


@pytest.mark.parametrize(
    ("override", "machine", "broken", "severity"),
    [
        ("policy.max_total_sequence_length=400000", (GPU, HOST), "training", "error"),
        ("policy.max_total_sequence_length=400000", (GPU, HOST), "sampling", "error"),
        ("aopsd.num_prompts_per_step=320", (GPU, HOST), "sampling", "warn"),
        ("policy.generation.vllm_cfg.gpu_memory_utilization=0.99", (GPU, HOST), "beside vLLM", "error"),
        ("aopsd.seed=1", (GPU, 200 * 10**9), "host", "error"),
        ("aopsd.seed=1", (34 * 10**9, HOST), "training", "warn"),
        ("aopsd.seed=1", (24 * 10**9, HOST), "training", "error"),
    ],
)
def test_what_does_not_fit_is_said_with_what_to_change(override, machine, broken, severity):
    found = severities(QWEN3_4B, layout_of("aopsd_qwen3_4b_megatron.yaml", override), machine)
    assert found[broken] == severity, found


def test_where_the_student_waits_while_vllm_shows_the_teacher_by_hand():
    """Beside 40 % of the GPU, less 2.5 GB of context, 8 GiB stay free; TP 2 halves vLLM's 8.04 GB of weights."""
    layout = replace(layout_of("aopsd_qwen3_4b_megatron.yaml"), utilization=0.6)
    for tp, needed in ((1, 8_044_936_192), (2, 4_022_468_096)):
        gpu = (needed + 8 * 2**30 + 2.5e9) / 0.4
        for more, waits in ((1e6, True), (-1e6, False)):
            place = replace(layout, sampler_tp=tp)
            assert memory.student_waits_on_gpu(read_size(QWEN3_4B), place, gpu + more) is waits
    assert not memory.student_waits_on_gpu(read_size(QWEN3_4B), replace(layout, keeps_cache=True), 1e12)


def test_where_the_optimizer_stays_while_vllm_samples_by_hand():
    """Beside 40 % of the GPU, less 2.5 GB of context, 8 GiB and vLLM's weights: 10 B x 2,011,326,208 / 4 copies."""
    size, asked = read_size(QWEN3_4B), layout_of("aopsd_qwen3_4b_megatron.yaml", "aopsd.keep_optimizer_on_gpu=true")
    state, asked = 10 * 2_011_326_208 // 4, replace(asked, utilization=0.6)
    for more, stays in ((1e6, True), (-1e6, False)):
        gpu = int((state + 8_044_936_192 + 8 * 2**30 + 2.5e9) / 0.4 + more)
        moved, kept = (fit.check_cluster(size, replace(asked, keeps_optimizer=on), gpu, HOST) for on in (False, True))
        (before, after), (rows, rows_kept) = zip(moved, kept, strict=True)
        (was,), (found,) = ([check for check in checks if "beside" in check.name] for checks in (before, after))
        told = ", optimizer (5.0 GB) there too" if stays else ", optimizer (5.0 GB) moved to the host: no room"
        offer = "; with aopsd.keep_optimizer_on_gpu=true its optimizer (5.0 GB) has room, too, and makes no way"
        assert (offer in was.found) == stays and offer not in found.found
        assert found.found == was.found.partition(";")[0] + told and found.severity == "ok"
        assert found.expected.startswith(gigabytes(2.5e9 + 1024 * 151936 * 14 + stays * state))
        on_gpu, on_host = (
            memory.total(rows_kept, place, "sampling") - memory.total(rows, place, "sampling")
            for place in ("gpu", "host")
        )
        assert (on_gpu, on_host) == (stays * state, -8 * stays * state)
    assert not memory.optimizer_stays(size, replace(asked, keeps_optimizer=False), 1e12)


def test_a_trainer_that_scores_beside_vllm_by_hand():
    layout = layout_of("aopsd_qwen3_4b_megatron.yaml", "aopsd.probes.keep_cache=true")
    weights = 2 * sum(memory.shard(read_size(QWEN3_4B), layout))
    # bf16: in and out of attention and MLP with their norms, q, output, k, v, and gate, up, product, input of down
    layer = 2 * (4 * 2560 + 2 * 4096 + 2 * 1024 + 2560 + 4 * 9728) * 16384 / 2
    logits = 151936 / 2 * (2 * 16384 + 4 * 2048)  # bf16 of a pack, float32 of a chunk
    assert memory.scoring(read_size(QWEN3_4B), layout) == weights + layer + logits
    for utilization, expected in ((0.6, "ok"), (0.9, "error")):
        changed = replace(layout, utilization=utilization)
        assert severities(QWEN3_4B, changed, (GPU, HOST))["beside vLLM"] == expected
        apart = replace(changed, keeps_cache=False)
        assert severities(QWEN3_4B, apart, (GPU, HOST))["beside vLLM"] == "ok"
    overrides = ("aopsd.probes.keep_cache=true", "aopsd.weighting=uniform")  # without probes no cache is kept
    assert not layout_of("aopsd_qwen3_4b_megatron.yaml", *overrides).keeps_cache


def test_the_local_engine_by_hand():
    overrides = ["policy.max_total_sequence_length=1000", "policy.train_micro_batch_size=2", "policy.prefix_cache_gb=1"]
    size = read_size(QWEN3_4B)

    def rows(*words):
        return memory.local_items(size, load_config(CONFIGS / "aopsd_tiny_cpu.yaml", [*overrides, *words]), "gpu")

    found = {row.name: row.size for row in rows("aopsd.teacher.weights=frozen")}
    assert found["weights"] == found["optimizer"] == 2 * 4 * 4_022_468_096
    assert found["gradients"] == 4 * 4_022_468_096
    assert found["logits"] == 3 * 4 * 151936 * 883  # 2**27 // 151936 positions at once, whatever the rows are
    assert found["activations"] == 36 * 2 * 123_904 * 2000
    assert found["kept KV"] == 2e9
    by_tokens = "+policy.dynamic_batching={enabled: true, train_mb_tokens: 5000}"
    assert {row.name: row.size for row in rows(by_tokens)}["activations"] == 36 * 2 * 123_904 * 5000
    few = {row.name: row.size for row in rows("policy.max_total_sequence_length=200")}
    assert few["logits"] == 3 * 4 * 151936 * 400
    on_host = memory.local_items(size, load_config(CONFIGS / "aopsd_tiny_cpu.yaml", overrides), "host")
    assert {row.name: row.size for row in on_host}["logits"] == 3 * 4 * 151936 * 220
    found = {row.name: row.size for row in rows("++policy.precision=bfloat16", "aopsd.teacher.weights=ema")}
    assert found["weights"] == 2 * 2 * 4_022_468_096
    assert found["gradients"] == (4 + 2) * 4_022_468_096  # summed in float32; those of a micro-batch
    assert found["optimizer"] == (2 * 4 + 4 + 4) * 4_022_468_096  # moments, masters, the average
    judged = {row.name: row for row in rows("aopsd.judge.model=Qwen/Qwen3-4B")}  # a model beside the student's
    assert judged["judge"].size == 4 * 4_022_468_096 and "judge" not in found
    unknown = {row.name: row.formula for row in rows("aopsd.judge.model=nobody/knows")}
    assert unknown["judge"].startswith("not counted")
    live = rows("aopsd.teacher.weights=live")
    assert live[0].size == 4 * 4_022_468_096
    assert fit.check_local(live, 16 * 10**9).severity == "warn"
    assert fit.check_local(live, 10**12).severity == "ok"


KEPT = "policy.prefix_cache_gb"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], [KEPT, "policy.train_micro_batch_size", "policy.precision=bfloat16"]),
        (["++policy.precision=bfloat16"], [KEPT, "policy.train_micro_batch_size"]),
        (
            ["++policy.precision=bfloat16", "+policy.dynamic_batching={enabled: true, train_mb_tokens: 90000}"],
            ["policy.dynamic_batching.train_mb_tokens", KEPT],
        ),
        (
            ["++policy.precision=bfloat16", "+policy.dynamic_batching={enabled: true, train_mb_tokens: 1000}"],
            [KEPT, "policy.max_total_sequence_length"],
        ),
        (["policy.train_micro_batch_size=1"], [KEPT, "policy.max_total_sequence_length", "policy.precision=bfloat16"]),
    ],
)
def test_a_local_run_that_does_not_fit_is_told_of_keys_in_effect_the_largest_item_first(words, named):
    overrides = ["policy.max_total_sequence_length=1000", "policy.train_micro_batch_size=2", f"++{KEPT}=9", *words]
    rows = memory.local_items(read_size(QWEN3_4B), load_config(CONFIGS / "aopsd_tiny_cpu.yaml", overrides), "gpu")
    assert re.findall(r"policy\.[\w.=]+", fit.check_local(rows, 10**9).remedy) == named


def test_the_local_engine_keeps_no_more_than_a_step_s_prefixes_and_names_what_it_has():
    """4 rows of 500 tokens, 4 B x 36 layers x 8 heads x 128 in float32, for two roles: less than twice 2 GB."""
    config = load_config(
        CONFIGS / "aopsd_tiny_cpu.yaml", ["policy.max_total_sequence_length=500", "aopsd.num_prompts_per_step=4"]
    )
    rows = {row.name: row for row in memory.local_items(read_size(QWEN3_4B), config, "host")}
    assert rows["kept KV"].size == 2 * 4 * 500 * 2 * 4 * 36 * 8 * 128
    assert rows["optimizer"].formula == "8 B x P: moments"
    words = ["++policy.precision=bfloat16", "aopsd.teacher.weights=ema"]
    rows = memory.local_items(read_size(QWEN3_4B), load_config(CONFIGS / "aopsd_tiny_cpu.yaml", words), "host")
    assert [row.formula for row in rows][2] == "16 B x P: moments, master weights, moving average"
    assert not any("bfloat16" in row.remedy for row in memory.local_items(read_size(QWEN3_4B), config, "host"))  # slow
