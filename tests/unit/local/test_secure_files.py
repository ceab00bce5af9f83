"""Files of a secure local cluster that one thread replaces while another reads them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hapax.local.folder import Folder
from hapax.local.secure import SecureFolder


def test_roots_certificate_and_key_belong_together_while_they_are_replaced(tmp_path: Path) -> None:
    secure = SecureFolder(Folder(tmp_path))
    secure.prepare("c", [], "127.0.0.1:1")

    def renew() -> None:
        for _ in range(200):
            secure.renew("c", [])

    with ThreadPoolExecutor(1) as other:
        renewed = other.submit(renew)
        while not renewed.done():
            secure.trust()  # raises ssl.SSLError (KEY_VALUES_MISMATCH) with one of each pair
    renewed.result()
