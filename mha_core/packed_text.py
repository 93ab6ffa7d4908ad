"""Long texts in a link: deflated and written in base64, and read back within bounds, whatever the link claims."""

from __future__ import annotations

import base64
import binascii
import zlib

from mha_core.errors import MhaError

MAX_PACKED_CHARACTERS = 400_000
PACK_ABOVE = 200  # characters: longer texts are compressed in a link


def pack_text(text: str) -> str:
    """Shorten a long text for a link: "~" and base64 of its deflated UTF-8; short texts stay readable."""
    if len(text) <= PACK_ABOVE and not text.startswith("~") and text.lower() not in ("none", ""):
        return text
    packed = zlib.compress(text.encode("utf-8", "replace"), 9)
    return "~" + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def unpack_text(field: str, packed: str) -> str:
    """Undo `pack_text`; the result is bounded, whatever the link claims.

    Raises:
        MhaError: damaged, or longer than 400,000 characters.
    """
    if not packed.startswith("~"):
        return packed
    try:
        blob = base64.urlsafe_b64decode(packed[1:] + "=" * (-len(packed[1:]) % 4))
        inflate = zlib.decompressobj()
        raw = inflate.decompress(blob, MAX_PACKED_CHARACTERS)
        if not inflate.eof:
            raise MhaError(field, f"{len(packed):,} characters", "a complete text of bounded length")
        return raw.decode("utf-8")
    except (binascii.Error, zlib.error, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, MhaError):
            raise
        problem = f"the packed {field} in the link is damaged"
        raise MhaError(field, packed, "a text packed by this product", problem=problem) from error
