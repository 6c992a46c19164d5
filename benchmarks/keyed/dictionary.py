"""A dictionary of Python: the least that a function could do, if nothing had to last.

python -m benchmarks.keyed.dictionary
"""

import gc
import heapq
from pathlib import Path
from typing import Any

from benchmarks.keyed.serving import Figures, Phases, serve
from benchmarks.keyed.works import Batch, all_keys, batch_of


class Dictionary:
    """An engine without snapshots. A value is a list of two integers: rows, and the sum of values."""

    _batch: Batch

    def begin(self, type: str) -> None:
        self._type = type
        self._totals: dict[Any, list[int]] = {}
        self._sums: dict[Any, int] = {}
        self._maps: dict[Any, dict[int, int]] = {}
        self._timers: list[tuple[int, Any]] = []

    def fill(self, keys: int, parallelism: int) -> None:
        if parallelism != 1:
            raise NotImplementedError("a dictionary has no key groups")
        for batch in all_keys(keys, self._type):
            pairs = zip(batch.keys.to_pylist(), batch.values.tolist(), strict=True)
            self._totals.update((key, [1, value]) for key, value in pairs)
        gc.collect()
        gc.freeze()  # Python looks through what comes later only

    def load(self, path: str) -> None:
        self._batch = batch_of(Path(path), self._type)

    def count(self) -> Figures:
        phases = Phases()
        keys, values = self._batch.keys.to_pylist(), self._batch.values.tolist()
        totals = self._totals
        for key, value in zip(keys, values, strict=True):
            pair = totals.get(key)
            if pair is None:
                totals[key] = [1, value]
            else:
                pair[0] += 1
                pair[1] += value
        phases.end("value and update")
        return phases.figures

    def access(self) -> None:
        sums = self._sums
        keys, values = self._batch.keys.to_pylist(), self._batch.values.tolist()
        for key, value in zip(keys, values, strict=True):
            sums[key] = sums.get(key, 0) + value

    def sums(self) -> Figures:
        return {"sum": sum(self._sums[key] for key in self._batch.keys.to_pylist())}

    def snapshot(self) -> None:
        """Nothing lasts."""

    def reopen(self, parallelism: int) -> None:
        raise NotImplementedError("nothing of a dictionary lasts")

    def look(self) -> Figures:
        pairs = [self._totals.get(key, (0, 0)) for key in self._batch.keys.to_pylist()]
        return {"count": sum(pair[0] for pair in pairs), "sum": sum(pair[1] for pair in pairs)}

    def put_entries(self) -> None:
        maps = self._maps
        values = self._batch.values.tolist()
        for key, value in zip(self._batch.keys.to_pylist(), values, strict=True):
            entries = maps.get(key)
            if entries is None:
                maps[key] = {value: value}
            else:
                entries[value] = value

    def get_entries(self) -> Figures:
        rows = zip(self._batch.keys.to_pylist(), self._batch.values.tolist(), strict=True)
        return {"sum": sum(self._maps.get(key, {}).get(value, 0) for key, value in rows)}

    def list_entries(self) -> Figures:
        lists = [list(self._maps[key].items()) for key in self._batch.keys.to_pylist()]
        values = [value for entries in lists for _, value in entries]
        return {"entries": len(values), "sum": sum(values)}

    def register(self) -> None:
        timers = zip(self._batch.values.tolist(), self._batch.keys.to_pylist(), strict=True)
        for timer in timers:
            heapq.heappush(self._timers, timer)

    def fire(self, until_ms: int) -> Figures:
        fired = 0
        while self._timers and self._timers[0][0] <= until_ms:
            heapq.heappop(self._timers)
            fired += 1
        return {"fired": fired}


if __name__ == "__main__":
    serve(Dictionary())
