"""Prometheus metrics: prefix ``dflash_``, vLLM's names and units after it.

What changes with every step is a plain integer here and takes its Prometheus form only when
somebody scrapes.
"""

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from engine.client import EngineClient
from engine.messages import Ready
from server.speculation import SpeculationCounts

Family = CounterMetricFamily | GaugeMetricFamily

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

# A second series for each metric, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics(Collector):
    """The metrics of one server process, in a registry of its own."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.speculation = SpeculationCounts(0)
        self._engine: EngineClient | None = None
        self._registry = CollectorRegistry()
        self.request_success = Counter(
            "dflash_request_success",
            "Choices that ended, by reason: stop, length, abort or error.",
            ["finished_reason"],
            registry=self._registry,
        )
        self.client_disconnects = Counter(
            "dflash_client_disconnects",
            "Requests whose client left before the end.",
            registry=self._registry,
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From the request's validation to its first token."
        )
        self.inter_chunk_latency = self._histogram(
            "inter_chunk_latency_seconds", "Between two steps of one choice."
        )
        self.e2e_request_latency = self._histogram(
            "e2e_request_latency_seconds", "From the request's validation to its last token."
        )
        self._registry.register(self)

    def attach(self, engine: EngineClient, ready: Ready) -> None:
        """The engine is up: its figures are exposed from now on."""
        self._engine = engine
        self.speculation = SpeculationCounts(ready.num_draft_tokens, ready.synthetic)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """Called by the registry at each scrape."""
        yield _counter("prompt_tokens", "Prompt tokens processed.", self.prompt_tokens)
        yield _counter("generation_tokens", "Tokens generated.", self.generation_tokens)
        yield from self._speculation()
        if self._engine is not None:
            yield from _engine_metrics(self._engine)

    def _histogram(self, name: str, documentation: str) -> Histogram:
        return Histogram(f"dflash_{name}", documentation, buckets=_SECONDS, registry=self._registry)

    def _speculation(self) -> Iterator[Family]:
        counts = self.speculation
        yield _counter("spec_decode_num_drafts", "Speculative steps.", counts.num_steps)
        yield _counter("spec_decode_num_draft_tokens", "Drafts verified.", counts.num_draft_tokens)
        yield _counter("spec_decode_num_accepted_tokens", "Drafts accepted.", counts.num_accepted)
        per_position = CounterMetricFamily(
            "dflash_spec_decode_num_accepted_tokens_per_pos",
            "Drafts accepted, by their position in the block.",
            labels=["position"],
        )
        for position, accepted in enumerate(counts.accepted_per_position()):
            per_position.add_metric([str(position)], accepted)
        yield per_position
        yield _gauge(
            "synthetic_acceptance", "1: drafts are accepted by chance.", float(counts.synthetic)
        )


def _engine_metrics(engine: EngineClient) -> Iterator[Family]:
    stats = engine.stats
    available = stats.num_free_kv_pages + stats.num_cached_kv_pages
    usage = 1 - available / stats.num_kv_pages if stats.num_kv_pages else 0.0
    yield _gauge("num_requests_running", "Requests in the batch.", stats.num_requests_running)
    yield _gauge("num_requests_waiting", "Requests in the queue.", stats.num_requests_waiting)
    yield _gauge("kv_cache_usage_perc", "Share of KV pages in use; 1 is all.", usage)
    yield _gauge(
        "worker_heartbeat_age_seconds", "Since the worker's last sign.", engine.heartbeat_age
    )
    yield _gauge("spec_decode_width", "Drafts of the last step.", stats.num_draft_tokens)
    yield _counter("num_preemptions", "Requests preempted.", stats.num_preemptions)
    yield _counter("prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_cache_queries)
    yield _counter("prefix_cache_hits", "Prompt tokens found.", stats.prefix_cache_hits)


def _counter(name: str, documentation: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"dflash_{name}", documentation, value=value)


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"dflash_{name}", documentation, value=value)
