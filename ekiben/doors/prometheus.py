"""Our metrics in Prometheus' text format, made when somebody scrapes."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ekiben.engine.engine import Engine
from ekiben.metrics import BATCH_SIZE_BUCKETS

__all__ = ["METRICS", "render"]

_LABELS = ("model", "version")

METRICS = {
    "ekiben_requests": "Requests answered.",
    "ekiben_failures": "Requests refused or failed, by reason.",
    "ekiben_rows": "Rows run, over all batches.",
    "ekiben_batch_size": "Rows of the batches that ran.",
    "ekiben_batches_released": "Batches, by why they were released: full, preferred, delay, idle or retry.",
    "ekiben_queue_seconds": "Time that answered requests waited before their batch was formed.",
    "ekiben_compute_seconds": "Time inside models, over all batches.",
    "ekiben_request_seconds": "Time from arrival to answer, over answered requests.",
    "ekiben_queue_rows": "Rows that wait for a batch.",
    "ekiben_batches_in_flight": "Batches handed to the runner and not answered yet.",
    "ekiben_runner_restarts": "Times that the runner was started again.",
    "ekiben_runner_memory_bytes": "Resident memory of the runner.",
    "ekiben_load_seconds": "From spawning the runner to the end of its warm-up, when the version was loaded.",
    "ekiben_version_ready": "1 when a loaded version answers, 0 while its runner is down.",
    "ekiben_engine_memory_bytes": "Resident memory of the engine process.",
    "ekiben_gpu_utilisation_ratio": "Share of time that a GPU was busy.",
    "ekiben_gpu_memory_used_bytes": "Memory in use on a GPU.",
    "ekiben_gpu_memory_bytes": "Memory of a GPU.",
}
"""Every metric of ours and what it says."""


def render(engine: Engine) -> bytes:
    """All metrics of ours, now. Runs on the event loop and takes time in proportion to the versions loaded."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(list(_collect(engine))))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _counter(name: str, labels: tuple[str, ...] = _LABELS) -> CounterMetricFamily:
    return CounterMetricFamily(name, METRICS[name], labels=labels)


def _gauge(name: str, labels: tuple[str, ...] = _LABELS) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, METRICS[name], labels=labels)


def _collect(engine: Engine) -> Iterator[Metric]:
    totals = {
        name: _counter(name)
        for name in (
            "ekiben_requests",
            "ekiben_rows",
            "ekiben_queue_seconds",
            "ekiben_compute_seconds",
            "ekiben_request_seconds",
            "ekiben_runner_restarts",
        )
    }
    levels = {
        name: _gauge(name)
        for name in (
            "ekiben_queue_rows",
            "ekiben_batches_in_flight",
            "ekiben_runner_memory_bytes",
            "ekiben_load_seconds",
            "ekiben_version_ready",
        )
    }
    failures = _counter("ekiben_failures", (*_LABELS, "reason"))
    released = _counter("ekiben_batches_released", (*_LABELS, "reason"))
    sizes = HistogramMetricFamily("ekiben_batch_size", METRICS["ekiben_batch_size"], labels=_LABELS)
    for reason, count in sorted(engine.unrouted.items()):
        failures.add_metric(("", "", reason), count)
    for loaded in engine.versions():
        labels = (loaded.view.model, loaded.view.version)
        counters = loaded.scheduler.counters
        totals["ekiben_requests"].add_metric(labels, counters.succeeded)
        totals["ekiben_rows"].add_metric(labels, counters.rows)
        totals["ekiben_queue_seconds"].add_metric(labels, counters.queue_ns / 1e9)
        totals["ekiben_compute_seconds"].add_metric(labels, counters.compute_ns / 1e9)
        totals["ekiben_request_seconds"].add_metric(labels, counters.succeeded_ns / 1e9)
        totals["ekiben_runner_restarts"].add_metric(labels, loaded.runner.restarts)
        levels["ekiben_queue_rows"].add_metric(labels, loaded.scheduler.queue_rows)
        levels["ekiben_batches_in_flight"].add_metric(labels, loaded.scheduler.in_flight)
        levels["ekiben_runner_memory_bytes"].add_metric(labels, loaded.runner.memory_bytes())
        levels["ekiben_load_seconds"].add_metric(labels, loaded.view.loaded.load_seconds)
        levels["ekiben_version_ready"].add_metric(labels, int(loaded.ready))
        for reason, count in sorted(counters.failed.items()):
            failures.add_metric((*labels, reason), count)
        for reason, count in sorted(counters.released.items()):
            released.add_metric((*labels, reason), count)
        bounds = [*(str(float(bound)) for bound in BATCH_SIZE_BUCKETS), "+Inf"]
        buckets = list(zip(bounds, map(float, counters.batch_size_buckets()), strict=True))
        sizes.add_metric(labels, buckets, sum_value=counters.rows)
    yield from totals.values()
    yield from levels.values()
    yield from (failures, released, sizes)
    memory = _gauge("ekiben_engine_memory_bytes", ())
    memory.add_metric((), _resident_bytes())
    yield memory
    yield from _gpus()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _gpus() -> Iterator[Metric]:
    """Figures of each GPU, where NVIDIA's library says there is one."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no library, no GPU: nothing to report
        return
    metrics = [
        _gauge(name, ("gpu",))
        for name in ("ekiben_gpu_utilisation_ratio", "ekiben_gpu_memory_used_bytes", "ekiben_gpu_memory_bytes")
    ]
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            with contextlib.suppress(pynvml.NVMLError):  # a GPU in slices has no utilisation of its own
                metrics[0].add_metric((str(index),), pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100)
            with contextlib.suppress(pynvml.NVMLError):
                memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
                metrics[1].add_metric((str(index),), memory.used)
                metrics[2].add_metric((str(index),), memory.total)
    finally:
        pynvml.nvmlShutdown()
    yield from metrics
