"""The exceptions Rostra raises.

RostraError
├── InvalidTopicName    a name that no topic may have
├── BatchRejected       bytes that are not an acceptable record batch
└── CodecUnavailable    a batch compressed by a library that is not installed
"""


class RostraError(Exception):
    """Base of every error that Rostra raises on purpose."""

    retry_helps: bool = False


class InvalidTopicName(RostraError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r} cannot name a topic: {reason}")
        self.name = name
        self.reason = reason


class BatchRejected(RostraError):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"batch rejected ({reason}): {detail}")
        self.reason = reason
        self.detail = detail


class CodecUnavailable(RostraError):
    def __init__(self, codec: str) -> None:
        super().__init__(f"{codec} is not installed here; run: pip install rostra[{codec}]")
        self.codec = codec
