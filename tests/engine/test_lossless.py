"""Speculation changes no token: each request's output equals that of a plain engine, alone.

The random drafter would be right by accident only, so ``Steering`` drafts from the plain run and
spoils what it drafts: every number of accepted drafts occurs.
"""

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from engine.messages import SamplingParams, Submit
from tests.engine.checkpoints import VOCAB, make_engine, write_drafter
from tests.engine.probe import Run, Steering, drive, submit

MAX_MODEL_LEN = 96


def random_params(random: Random, kind: int) -> dict[str, Any]:
    """Greedy, plainly sampled, or sampled with everything at once."""
    params: dict[str, Any] = {
        "max_tokens": random.randint(1, 30),
        "seed": random.choice([0, 1, -1, random.getrandbits(63)]),
        "temperature": [0.0, 1.0, 0.8, 0.0][kind % 4],
        "ignore_eos": random.random() < 0.5,
    }
    if kind % 4 >= 2:
        params |= {
            "repetition_penalty": random.choice([1.0, 1.3, 0.8]),
            "frequency_penalty": random.choice([0.0, 0.9, -0.7]),
            "presence_penalty": random.choice([0.0, 1.5]),
            "logit_bias": {random.randrange(VOCAB): random.uniform(-9, 9) for _ in range(5)},
            "min_tokens": random.choice([0, 6]),
            "stop_token_ids": tuple(random.sample(range(VOCAB), random.choice([0, 30]))),
        }
    if kind % 4 == 2:
        params |= {
            "top_k": random.choice([0, 3, 20, 500]),
            "top_p": random.choice([1.0, 0.9, 0.4]),
            "min_p": random.choice([0.0, 0.05, 0.3]),
        }
    return params


def workload(seed: int, count: int = 16) -> list[Submit]:
    """Mixed kinds and lengths; a third of the prompts begin alike."""
    random = Random(seed)
    shared = [random.randrange(VOCAB) for _ in range(30)]
    requests = []
    for index in range(count):
        prompt = [random.randrange(VOCAB) for _ in range(random.choice([1, 3, 8, 17, 33]))]
        begin = shared[: random.choice([16, 30])] if index % 3 == 0 else []
        requests.append(submit(f"r{index}", begin + prompt, **random_params(random, index)))
    return requests


@pytest.fixture(scope="module")
def plain_runs(target_dir: Path) -> dict[int, Run]:
    """What the requests give without a drafter, one after another, nothing shared."""
    runs = {}
    for seed in range(3):
        core = make_engine(target_dir, prefix_caching=False, max_model_len=MAX_MODEL_LEN)
        run = Run()
        for request in workload(seed):
            alone = drive(core, [request])
            run.tokens |= alone.tokens
            run.reasons |= alone.reasons
        runs[seed] = run
    return runs


SCENARIOS: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1},
    "batch_of_8": {"max_num_seqs": 8},
    "batch_of_16_at_once": {"max_num_seqs": 16, "stagger": 0},
    "preempted": {"max_num_seqs": 8, "kv_tokens": 176, "stagger": 0},
    "preempted_without_prefix_cache": {
        "max_num_seqs": 8, "kv_tokens": 176, "stagger": 0, "prefix_caching": False
    },
    "small_chunks": {"max_num_seqs": 3, "max_num_batched_tokens": 24},
    "smaller_chunks": {"max_num_seqs": 2, "max_num_batched_tokens": 16, "num_draft_tokens": 3},
    "small_pages": {"max_num_seqs": 5, "page_size": 1},
    "large_pages": {"max_num_seqs": 5, "page_size": 64},
    "one_draft": {"max_num_seqs": 5, "num_draft_tokens": 1},
    "another_width_in_each_step": {"max_num_seqs": 5, "any_width": True},
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_speculation_changes_no_token(
    scenario: str,
    seed: int,
    plain_runs: dict[int, Run],
    target_dir: Path,
    drafter_dir: Path,
) -> None:
    options = {"stagger": 1, "max_model_len": MAX_MODEL_LEN, **SCENARIOS[scenario]}
    stagger, any_width = options.pop("stagger"), options.pop("any_width", False)
    core = make_engine(target_dir, drafter_dir, **options)
    plain = plain_runs[seed]
    steering = Steering(core, plain.tokens, seed, any_width)
    run = drive(core, workload(seed), stagger=stagger)
    assert run.tokens == plain.tokens
    assert run.reasons == plain.reasons
    width = core.runner.num_draft_tokens
    assert steering.right[0] > 0
    assert steering.right[width] > 0
    if scenario.startswith("preempted"):
        assert core.stats().num_preemptions > 0
    elif stagger and options.get("page_size", 8) <= 16:
        assert core.stats().prefix_cache_hits > 0


def test_the_workload_is_worth_it(plain_runs: dict[int, Run]) -> None:
    reasons = [reason for run in plain_runs.values() for reason in run.reasons.values()]
    assert reasons.count("stop") > 5
    assert reasons.count("length") > 5
    assert len({tuple(t) for run in plain_runs.values() for t in run.tokens.values()}) > 40


@pytest.mark.parametrize("seed", range(2))
def test_a_warm_prefix_cache_changes_no_token(
    seed: int, plain_runs: dict[int, Run], target_dir: Path, drafter_dir: Path
) -> None:
    core = make_engine(target_dir, drafter_dir, max_model_len=MAX_MODEL_LEN, kv_tokens=4096)
    Steering(core, plain_runs[seed].tokens, seed)
    drive(core, workload(seed), stagger=1)
    hits = core.stats().prefix_cache_hits
    again = drive(core, workload(seed), stagger=2)
    assert again.tokens == plain_runs[seed].tokens
    assert core.stats().prefix_cache_hits - hits > 150


def test_the_drafter_as_it_is(plain_runs: dict[int, Run], target_dir: Path, tmp_path: Path) -> None:
    write_drafter(tmp_path, layer_types=["sliding_attention"] * 3, use_sliding_window=True,
                  sliding_window=5)  # fmt: skip
    core = make_engine(target_dir, tmp_path, max_model_len=MAX_MODEL_LEN)
    assert drive(core, workload(0), stagger=1).tokens == plain_runs[0].tokens


def test_recovery_continues_where_it_stopped(
    plain_runs: dict[int, Run], target_dir: Path, drafter_dir: Path
) -> None:
    """A request that comes with tokens it emitted before emits the rest of its plain run."""
    core = make_engine(target_dir, drafter_dir, max_model_len=MAX_MODEL_LEN)
    plain, random = plain_runs[1].tokens, Random(0)
    requests, rest = [], {}
    for request in workload(1):
        tokens = plain[request.request_id]
        known = random.randint(0, len(tokens) - 1)
        requests.append(msgspec.structs.replace(request, output_token_ids=tokens[:known]))
        rest[request.request_id] = tokens[known:]
    Steering(core, plain, seed=4)
    assert drive(core, requests).tokens == rest


def test_counts_of_the_outputs(
    plain_runs: dict[int, Run], target_dir: Path, drafter_dir: Path
) -> None:
    core = make_engine(target_dir, drafter_dir, max_model_len=MAX_MODEL_LEN)
    Steering(core, plain_runs[2].tokens, seed=9)
    run = drive(core, workload(2))
    for outputs in run.outputs.values():
        assert len(outputs[0].token_ids) == 1
        assert outputs[0].num_draft_tokens == 0
        assert all(1 <= len(o.token_ids) <= 6 for o in outputs[1:])
        assert all(o.num_draft_tokens == 5 for o in outputs[1:])
        assert all(o.finish_reason is None for o in outputs[:-1])
    assert any(len(o.token_ids) == 6 for outputs in run.outputs.values() for o in outputs)


PLAIN = SamplingParams(max_tokens=12, temperature=1.0, ignore_eos=True, seed=3)
CHANGES: dict[str, Any] = {
    "temperature": 0.3,
    "top_k": 2,
    "top_p": 0.2,
    "min_p": 0.5,
    "repetition_penalty": 3.0,
    "frequency_penalty": 2.0,
    "presence_penalty": 2.0,
    "logit_bias": {7: 100.0},
    "seed": 4,
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_parameter_changes_the_output(name: str, target_dir: Path, drafter_dir: Path) -> None:
    core = make_engine(target_dir, drafter_dir)
    changed = msgspec.structs.replace(PLAIN, **{name: CHANGES[name]})
    requests = [
        Submit(request_id=i, prompt_token_ids=[1, 2, 3], params=p)
        for i, p in [("plain", PLAIN), ("changed", changed)]
    ]
    tokens = drive(core, requests).tokens
    assert tokens["plain"] != tokens["changed"]


def test_stop_tokens_min_tokens_and_eos(target_dir: Path, drafter_dir: Path) -> None:
    core = make_engine(target_dir, drafter_dir)
    params = {"max_tokens": 20, "temperature": 1.0, "logit_bias": {5: 60.0, 9: 50.0}}
    requests = [
        submit("eos", [1], ignore_eos=False, **params),
        submit("later", [1], ignore_eos=False, min_tokens=4, **params),
        submit("ignored", [1], **params),
        submit("stop", [1], stop_token_ids=(9, 5), min_tokens=3, **params),
    ]
    run = drive(core, requests)
    assert run.tokens["eos"] == [5]
    assert run.tokens["later"] == [9, 9, 9, 9, 5]
    assert run.tokens["ignored"] == [5] * 20
    assert run.reasons == {"eos": "stop", "later": "stop", "ignored": "length", "stop": "stop"}
    assert len(run.tokens["stop"]) == 4
    assert run.tokens["stop"][-1] == 5
    assert not {5, 9} & set(run.tokens["stop"][:3])
