"""Asks pods that run users' code, or that may be gone, how far they are."""

from __future__ import annotations

from typing import Final

import aiohttp

_TIMEOUT_S: Final = 3.0


class PodHttp:
    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, address: str, port: int, path: str, most_bytes: int) -> bytes | None:
        """None: the pod does not answer, or not with 200. Raises ValueError for a longer answer."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.get(f"http://{host}:{port}{path}", allow_redirects=False) as response:
                if response.status != 200:
                    return None
                text = b""
                async for piece in response.content.iter_any():
                    text += piece
                    if len(text) > most_bytes:
                        raise ValueError(f"the answer has more than {most_bytes} bytes")
                return text
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
