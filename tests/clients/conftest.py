from __future__ import annotations

import pytest

from clients.logins import Logins, logins
from clients.secured import secured


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Logins:
    """Names, passwords and tokens, and the certificates of a listener for them."""
    return logins(secured(tmp_path_factory.mktemp("certificates")))
