"""Compression of batch bodies by optional libraries, with a hard bound on what is inflated."""

from types import ModuleType

from rostra.errors import BatchRejected, CodecUnavailable
from rostra.model.batch import Codec, Reason


def compress(codec: Codec, raw: bytes | bytearray) -> bytes:
    compressed: bytes
    match codec:
        case Codec.LZ4:
            compressed = _lz4().compress(raw, store_size=False)
        case Codec.ZSTD:
            compressed = _zstd().ZstdCompressor().compress(raw)
        case Codec.NONE:
            compressed = bytes(raw)
    return compressed


def inflate(codec: int, compressed: memoryview, raw_bytes: int) -> bytes:
    """Exactly raw_bytes of raw body; never allocates more than that, whatever the input says."""
    match codec:
        case Codec.LZ4:
            raw = _inflate_lz4(compressed, raw_bytes)
        case Codec.ZSTD:
            raw = _inflate_zstd(compressed, raw_bytes)
        case _:
            raise BatchRejected(Reason.CODEC, f"codec {codec} is unknown")
    if len(raw) != raw_bytes:
        raise BatchRejected(Reason.COMPRESSION, f"inflated to {len(raw)} bytes, header claims {raw_bytes}")
    return raw


def _inflate_lz4(compressed: memoryview, raw_bytes: int) -> bytes:
    block = _lz4()
    try:
        raw: bytes = block.decompress(compressed, uncompressed_size=raw_bytes)
    except block.LZ4BlockError as error:
        raise BatchRejected(Reason.COMPRESSION, f"lz4: {error}") from None
    return raw


def _inflate_zstd(compressed: memoryview, raw_bytes: int) -> bytes:
    zstandard = _zstd()
    try:
        # The library inflates a frame to the size it declares whatever bound is given, takes a
        # bound of zero for none, and allocates the whole window of a frame that declares no
        # size: each would let the sender choose our allocation.
        declared = zstandard.frame_content_size(compressed)
        if declared != raw_bytes or raw_bytes <= 0:
            raise BatchRejected(Reason.COMPRESSION, f"zstd frame of {declared} bytes, header claims {raw_bytes}")
        raw: bytes = zstandard.ZstdDecompressor().decompress(
            compressed, max_output_size=raw_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise BatchRejected(Reason.COMPRESSION, f"zstd: {error}") from None
    return raw


def _lz4() -> ModuleType:
    try:
        import lz4.block
    except ImportError:
        raise CodecUnavailable("lz4") from None
    module: ModuleType = lz4.block
    return module


def _zstd() -> ModuleType:
    try:
        import zstandard
    except ImportError:
        raise CodecUnavailable("zstd") from None
    return zstandard
