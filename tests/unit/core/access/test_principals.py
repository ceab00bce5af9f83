import pytest

from hapax.core.access.principals import ANONYMOUS, parsed, user


@pytest.mark.parametrize("text", ["User:alice", "User:CN=a,O=b:c", "User:*", "Group:x"])
def test_a_principal_is_a_type_and_a_name(text: str) -> None:
    assert parsed(text) == text


@pytest.mark.parametrize("text", ["", "alice", "User:", ":alice", ":"])
def test_other_text_is_no_principal(text: str) -> None:
    with pytest.raises(ValueError, match="Type:name"):
        parsed(text)


def test_a_connection_without_authentication_is_a_user_too() -> None:
    assert user("ANONYMOUS") == ANONYMOUS
