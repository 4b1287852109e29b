"""What is counted per model version: plain integers on the hot path, shaped for people when somebody asks.

`VersionCounters` is written by the scheduler only, on the event loop, once a batch wherever possible.
Times are nanoseconds, as OIP's statistics extension wants them.
"""

from collections import Counter

import msgspec

__all__ = ["BATCH_SIZE_BUCKETS", "BatchStatistics", "Duration", "VersionCounters", "VersionStatistics"]

BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Duration(msgspec.Struct, frozen=True):
    """How often something happened, and how long it took in all."""

    count: int
    ns: int


class BatchStatistics(msgspec.Struct, frozen=True):
    """What executions of one batch size took."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class VersionStatistics(msgspec.Struct, frozen=True):
    """One version's figures since it was loaded, in the terms of OIP's statistics extension."""

    name: str
    version: str
    last_inference_ms: int
    """Milliseconds since the epoch; 0: none yet."""
    inference_count: int
    """Rows answered."""
    execution_count: int
    """Batches run."""
    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    batch_stats: tuple[BatchStatistics, ...]


class _Executions:
    """Totals over the executions of one batch size."""

    __slots__ = ("compute_ns", "count", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.count = self.input_ns = self.compute_ns = self.output_ns = 0


class VersionCounters:
    """Everything counted for one loaded version."""

    def __init__(self) -> None:
        self.succeeded = 0
        self.succeeded_ns = 0
        self.failed: Counter[str] = Counter()
        """Requests refused or failed, by EkibenError.reason."""
        self.failed_ns = 0
        self.rows = 0
        self.queue_ns = 0
        self.released: Counter[str] = Counter()
        """Batches by why they were released."""
        self.last_inference_ms = 0
        self._by_size: dict[int, _Executions] = {}

    def executed(self, rows: int, input_ns: int, compute_ns: int, output_ns: int) -> None:
        """Count one batch that ran."""
        sums = self._by_size.get(rows)
        if sums is None:
            sums = self._by_size[rows] = _Executions()
        sums.count += 1
        sums.input_ns += input_ns
        sums.compute_ns += compute_ns
        sums.output_ns += output_ns
        self.rows += rows

    @property
    def executions(self) -> int:
        """Batches run."""
        return sum(sums.count for sums in self._by_size.values())

    @property
    def compute_ns(self) -> int:
        """Time inside the model, over all batches."""
        return sum(sums.compute_ns for sums in self._by_size.values())

    def batch_size_buckets(self) -> list[int]:
        """Cumulative counts of batches with at most BATCH_SIZE_BUCKETS[i] rows, then all of them."""
        counts = [
            sum(sums.count for rows, sums in self._by_size.items() if rows <= bound) for bound in BATCH_SIZE_BUCKETS
        ]
        return [*counts, self.executions]

    def statistics(self, name: str, version: str) -> VersionStatistics:
        """The figures as OIP's statistics extension reports them."""
        by_size = sorted(self._by_size.items())
        requests = self.succeeded
        return VersionStatistics(
            name=name,
            version=version,
            last_inference_ms=self.last_inference_ms,
            inference_count=self.rows,
            execution_count=self.executions,
            success=Duration(self.succeeded, self.succeeded_ns),
            fail=Duration(self.failed.total(), self.failed_ns),
            queue=Duration(requests, self.queue_ns),
            compute_input=Duration(requests, sum(sums.input_ns for _, sums in by_size)),
            compute_infer=Duration(requests, self.compute_ns),
            compute_output=Duration(requests, sum(sums.output_ns for _, sums in by_size)),
            batch_stats=tuple(
                BatchStatistics(
                    batch_size=rows,
                    compute_input=Duration(sums.count, sums.input_ns),
                    compute_infer=Duration(sums.count, sums.compute_ns),
                    compute_output=Duration(sums.count, sums.output_ns),
                )
                for rows, sums in by_size
            ),
        )
