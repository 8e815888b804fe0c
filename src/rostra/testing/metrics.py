"""The metrics of a node, parsed."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


class Metrics:
    """The metrics of a node at one moment.

    >>> Metrics('rostra_topics 2.0').value("rostra_topics")
    2.0
    """

    def __init__(self, exposed: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(exposed + "\n") for sample in family.samples
        ]

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of all samples with this name and at least these labels."""
        return [
            sample.value
            for sample in self._samples
            if sample.name == name and all(sample.labels.get(label) == text for label, text in labels.items())
        ]

    def value(self, name: str, **labels: str) -> float:
        """Their sum; 0 without a sample."""
        return sum(self.values(name, **labels))
