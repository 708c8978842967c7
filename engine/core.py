"""The engine without its process: scheduler and model runner, driven one step at a time."""

import time

import msgspec

from engine.config import EngineConfig
from engine.messages import FinishReason, Output, Ready, Stats, Submit
from engine.request import Request
from engine.runner.model_runner import Emission, ModelRunner
from engine.scheduler import Scheduler, SchedulerLimits
from engine.slots import stop_token_ids
from engine.width import WidthController


class EngineCore:
    """Requests in, outputs out. Raises ConfigError if the configuration cannot work."""

    def __init__(self, config: EngineConfig) -> None:
        self.runner = ModelRunner(config)
        options = config.engine
        limits = SchedulerLimits(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=self.runner.max_model_len,
            num_draft_tokens=self.runner.num_draft_tokens,
            page_size=options.page_size,
            prefix_caching=options.prefix_caching,
        )
        self.scheduler = Scheduler(limits, self.runner.num_pages)
        adaptive = options.num_draft_tokens == "auto" and self.runner.num_draft_tokens > 0
        self._width = WidthController(self.runner.num_draft_tokens) if adaptive else None

    def ready(self) -> Ready:
        """What the API process needs to know of this engine."""
        return Ready(
            max_model_len=self.runner.max_model_len,
            num_kv_tokens=self.runner.num_kv_tokens,
            num_draft_tokens=self.runner.num_draft_tokens,
            vocab_size=self.runner.vocab_size,
            eos_token_ids=self.runner.eos_token_ids,
            device=self.runner.device.type,
            dtype=str(self.runner.dtype).removeprefix("torch."),
            synthetic=self.runner.synthetic_rates is not None,
        )

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return self.scheduler.has_work

    def stats(self) -> Stats:
        """Gauges and counters of the scheduler, and the width of the last step."""
        drafts = self._width.chosen if self._width else self.runner.num_draft_tokens
        return msgspec.structs.replace(self.scheduler.stats(), num_draft_tokens=drafts)

    def submit(self, message: Submit) -> Output | None:
        """Queue a request. An impossible one gives an error output at once."""
        try:
            self._check(message)
            self.scheduler.add(Request.from_submit(message))
        except ValueError as error:
            return Output(
                request_id=message.request_id, token_ids=[], finish_reason="error", error=str(error)
            )
        return None

    def abort(self, request_id: str) -> None:
        """Drop a request and free what it holds; unknown ids are ignored."""
        self.scheduler.abort(request_id)

    def step(self) -> list[Output]:
        """Run what the scheduler decides: prefill chunks and one speculative step."""
        schedule = self.scheduler.schedule()
        outputs: list[Output] = []
        if schedule.prefills:
            emissions = self.runner.prefill(schedule.prefills)
            for chunk in schedule.prefills:
                self.scheduler.chunk_done(chunk)
            outputs += [self._emit(emission, num_draft_tokens=0) for emission in emissions]
        if schedule.decodes:
            outputs += self._speculate(schedule.decodes, alone=not schedule.prefills)
        return outputs

    def _speculate(self, requests: list[Request], alone: bool) -> list[Output]:
        """One speculative step, as wide as pays. ``alone``: the device has nothing else to do."""
        drafts = self._width.choose(len(requests)) if self._width else self.runner.num_draft_tokens
        start = time.perf_counter()
        emissions = self.runner.step(requests, drafts)
        seconds = time.perf_counter() - start
        if self._width:
            accepted = [(len(e.token_ids) - 1, e.stopped or e.exhausted) for e in emissions]
            self._width.observe(drafts, accepted, seconds if alone else None)
        return [self._emit(emission, drafts) for emission in emissions]

    def _emit(self, emission: Emission, num_draft_tokens: int) -> Output:
        request = emission.request
        self.scheduler.append(request, emission.token_ids)
        reason = self._finish_reason(emission)
        if reason is not None:
            self.scheduler.finish(request)
        return Output(
            request_id=request.request_id,
            token_ids=emission.token_ids,
            finish_reason=reason,
            num_draft_tokens=num_draft_tokens,
            num_cached_tokens=request.num_cached_tokens,
        )

    @staticmethod
    def _finish_reason(emission: Emission) -> FinishReason | None:
        if emission.stopped:
            return "stop"
        return "length" if emission.exhausted else None

    def _check(self, message: Submit) -> None:
        """Refuse what would break the device's tensors; the API process has refused it before."""
        params, known = message.params, len(message.output_token_ids)
        vocabulary = range(self.runner.vocab_size)
        tokens = {
            "prompt_token_ids": message.prompt_token_ids,
            "output_token_ids": message.output_token_ids,
            "logit_bias": params.logit_bias,
            "stop_token_ids": params.stop_token_ids,
        }
        for name, ids in tokens.items():
            if (bad := next((i for i in ids if i not in vocabulary), None)) is not None:
                raise ValueError(
                    f"{name}: {bad} is no token; ids are from 0 to {self.runner.vocab_size - 1}"
                )
        room = self.runner.max_model_len - len(message.prompt_token_ids)
        if not known < params.max_tokens <= room:
            raise ValueError(
                f"max_tokens = {params.max_tokens} must be above {known} emitted tokens and at "
                f"most {room}, the room after the prompt"
            )
        stop_token_ids(params, self.runner.eos_token_ids)
