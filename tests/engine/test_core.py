"""EngineCore: what it refuses, what it forgets, and how requests end."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.config import ConfigError
from engine.core import EngineCore
from engine.messages import Submit
from tests.engine.checkpoints import EOS_IDS, TARGET, VOCAB, make_engine, write_target
from tests.engine.probe import drive, submit


@pytest.fixture(scope="module")
def core(target_dir: Path, drafter_dir: Path) -> EngineCore:
    return make_engine(target_dir, drafter_dir, max_model_len=64)


def test_ready(core: EngineCore) -> None:
    ready = core.ready()
    assert ready.max_model_len == 64
    assert ready.num_kv_tokens == 2048
    assert ready.num_draft_tokens == 5
    assert ready.vocab_size == VOCAB
    assert ready.eos_token_ids == EOS_IDS
    assert (ready.device, ready.dtype) == ("cpu", "float32")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (submit("x", [1, 97]), ["prompt_token_ids", "97", "96"]),
        (submit("x", [-1]), ["prompt_token_ids", "-1"]),
        (submit("x", []), ["at least 1"]),
        (submit("x", [1], logit_bias={97: 1.0}), ["logit_bias", "97"]),
        (submit("x", [1], stop_token_ids=(2, 2**40), min_tokens=2), ["stop_token_ids", str(2**40)]),
        (submit("x", [1], stop_token_ids=tuple(range(65))), ["stop_token_ids", "65", "64"]),
        (submit("x", [1] * 60, max_tokens=5), ["max_tokens = 5", "4"]),
        (submit("x", [1], max_tokens=0), ["max_tokens = 0"]),
        (
            msgspec.structs.replace(submit("x", [1], max_tokens=2), output_token_ids=[3, 3]),
            ["max_tokens = 2", "2 emitted"],
        ),
        (
            msgspec.structs.replace(submit("x", [1]), output_token_ids=[-5]),
            ["output_token_ids", "-5"],
        ),
    ],
)
def test_impossible_requests_are_refused(
    message: Submit, words: list[str], core: EngineCore
) -> None:
    output = core.submit(message)
    assert output is not None
    assert (output.finish_reason, output.token_ids) == ("error", [])
    for word in words:
        assert word in str(output.error)
    assert not core.has_work


def test_an_id_in_use_is_refused_and_free_again_afterwards(core: EngineCore) -> None:
    assert core.submit(submit("same", [1, 2])) is None
    second = core.submit(submit("same", [1, 2]))
    assert second is not None
    assert "same" in str(second.error)
    core.abort("same")
    assert not core.has_work
    core.abort("same")


def test_a_reused_id_starts_afresh(target_dir: Path, drafter_dir: Path) -> None:
    """The same id takes the same slot again, with as many pages: nothing may be left over."""
    core = make_engine(target_dir, drafter_dir, prefix_caching=False)
    first = submit("same", [1, 2, 3], max_tokens=9, logit_bias={4: 50.0})
    second = submit("same", [9, 8, 7], max_tokens=12, temperature=0.9, seed=5)
    assert drive(core, [first]).tokens["same"] == [4] * 9
    assert core.submit(submit("other", [5, 6], max_tokens=40)) is None  # takes the slot
    core.step()
    again = drive(core, [second]).tokens["same"]
    alone = drive(make_engine(target_dir, prefix_caching=False), [second]).tokens["same"]
    assert again == alone
    assert drive(core, [first]).tokens["same"] == [4] * 9
    assert drive(core, [second]).tokens["same"] == alone


def test_a_request_may_fill_the_context(core: EngineCore) -> None:
    run = drive(core, [submit("x", [3] * 40, max_tokens=24), submit("y", [3] * 63, max_tokens=1)])
    assert {name: len(tokens) for name, tokens in run.tokens.items()} == {"x": 24, "y": 1}
    assert set(run.reasons.values()) == {"length"}


@pytest.mark.parametrize("steps", range(5))
def test_abort_at_any_step_frees_everything(steps: int, core: EngineCore) -> None:
    for name in "abc":
        assert core.submit(submit(name, [1] * 30, max_tokens=30)) is None
    for _ in range(steps):
        core.step()
    core.abort("b")
    core.scheduler.check_integrity()
    run = drive(core, [])
    assert "b" not in run.reasons
    assert {"a", "c"} <= run.reasons.keys()


def test_an_aborted_neighbour_changes_nothing(target_dir: Path, drafter_dir: Path) -> None:
    core = make_engine(target_dir, drafter_dir)
    alone = drive(core, [submit("alone", [4, 4, 4], max_tokens=20)]).tokens["alone"]
    core.submit(submit("gone", [1] * 9, max_tokens=20))
    core.submit(submit("stays", [4, 4, 4], max_tokens=20))
    tokens = [
        t for _ in range(2) for o in core.step() if o.request_id == "stays" for t in o.token_ids
    ]
    core.abort("gone")
    rest = drive(core, [submit("new", [2] * 9, max_tokens=20)]).tokens["stays"]
    assert tokens + rest == alone


def config_error(target: Path, drafter: Path | None = None, **engine: Any) -> str:
    with pytest.raises(ConfigError) as error:
        make_engine(target, drafter, **engine)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_cache_that_holds_no_page(target_dir: Path) -> None:
    message = config_error(target_dir, kv_cache_gib=1e-6)
    assert "engine.kv_cache_gib" in message


def test_a_cache_that_holds_no_longest_request(target_dir: Path, drafter_dir: Path) -> None:
    message = config_error(target_dir, drafter_dir, kv_tokens=64, max_model_len=64)
    for word in ["engine.max_model_len = 64", "69", "64 tokens", "engine.kv_cache_gib"]:
        assert word in message
    make_engine(target_dir, drafter_dir, kv_tokens=72, max_model_len=64)


def test_a_budget_below_the_draft_blocks(target_dir: Path, drafter_dir: Path) -> None:
    message = config_error(target_dir, drafter_dir, max_num_batched_tokens=24, max_num_seqs=4)
    for word in ["engine.max_num_batched_tokens = 24", "engine.max_num_seqs"]:
        assert word in message


def test_eos_outside_the_vocabulary(tmp_path: Path) -> None:
    write_target(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 400]}')
    message = config_error(tmp_path)
    for word in [str(tmp_path), "eos_token_id = 400", str(VOCAB)]:
        assert word in message


def test_sliding_targets_keep_their_output_when_batched(tmp_path: Path, drafter_dir: Path) -> None:
    sliding = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
    write_target(tmp_path, **{**TARGET, **sliding})
    requests = [submit(str(i), range(1, 30 + i), max_tokens=20) for i in range(4)]
    plain = drive(make_engine(tmp_path, max_num_seqs=1), requests).tokens
    assert drive(make_engine(tmp_path, drafter_dir), requests).tokens == plain


@pytest.mark.parametrize(
    ("rates", "load_format", "words"),
    [
        ([0.9] * 5, "auto", ["synthetic_acceptance_rates", "target.load_format", "dummy"]),
        ([0.9] * 4, "dummy", ["[0.9, 0.9, 0.9, 0.9]", "5 rates"]),
        ([0.5, 0.6, 0.5, 0.5, 0.5], "dummy", ["none above the one before"]),
    ],
)
def test_synthetic_rates_that_cannot_be(
    rates: list[float], load_format: str, words: list[str], target_dir: Path, drafter_dir: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_engine(
            target_dir, drafter_dir, load_format=load_format, synthetic_acceptance_rates=rates
        )
    for word in words:
        assert word in str(refused.value)


def test_synthetic_rates_fill_the_blocks_of_dummy_weights(
    target_dir: Path, drafter_dir: Path
) -> None:
    core = make_engine(
        target_dir, drafter_dir, load_format="dummy", synthetic_acceptance_rates=[1.0] * 5
    )
    assert core.ready().synthetic
    outputs = drive(core, [submit("x", [1, 2, 3], max_tokens=31)])
    assert [len(o.token_ids) for o in outputs.outputs["x"]] == [1, 6, 6, 6, 6, 6]
