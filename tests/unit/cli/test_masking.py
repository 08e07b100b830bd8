"""Database URLs are shown without the password, whatever characters it has, and otherwise unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.settings.masking import MASK, shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql+pymysql://u:hunter2@h:3306/db", f"mysql+pymysql://u:{MASK}@h:3306/db"),
        ("mysql://u:hunter2@[::1]:3306/db", f"mysql://u:{MASK}@[::1]:3306/db"),
        ("mysql://u@h/db", "mysql://u@h/db"),
        ("mysql://h:3306/db", "mysql://h:3306/db"),
        ("mysql://u:@h/db", f"mysql://u:{MASK}@h/db"),
        ("mysql://u:hunt%40er2@h/db?ssl_ca=/a.pem", f"mysql://u:{MASK}@h/db?ssl_ca=/a.pem"),
        ("mysql://u:hunter2@h/db?ssl_ca=/a@b.pem", f"mysql://u:{MASK}@h/db?ssl_ca=/a@b.pem"),
        ("mysql://u:hu@nt:er/2@h/db", f"mysql://u:{MASK}@h/db"),
        ("mysql://u:hu?nter2@h/db?ssl_ca=/a", f"mysql://u:{MASK}@h/db?ssl_ca=/a"),
        ("mysql://u:hu?n=ter2@h/db?ssl_ca=/a", f"mysql://u:{MASK}@h/db?ssl_ca=/a"),
        ("mysql://u:hu@n?ter2@h/db", f"mysql://u:{MASK}@h/db"),
        ("mysql://u@h/db?password=hunter2&ssl_ca=/a", f"mysql://u@h/db?password={MASK}&ssl_ca=/a"),
        ("mysql://u@h/db?PassWd=hunter2", f"mysql://u@h/db?PassWd={MASK}"),
        ("mysql://u@h/db?pass%77ord=hunter2", f"mysql://u@h/db?pass%77ord={MASK}"),
        (
            "mysql://u@h/db?ssl_key=/k.pem&ssl_key_password=hunter2",
            f"mysql://u@h/db?ssl_key=/k.pem&ssl_key_password={MASK}",
        ),
        ("sqlite:////srv/nos/metadata.db", "sqlite:////srv/nos/metadata.db"),
        ("u:hunter2@h/db", MASK),
    ],
)
def test_only_passwords_are_masked(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@given(password=st.text(st.characters(codec="utf-8", exclude_characters="@&=?"), min_size=1))
def test_no_password_is_shown(password: str) -> None:
    assert shown_url(f"mysql://u:{password}@h:3306/db?ssl_ca=/a") == f"mysql://u:{MASK}@h:3306/db?ssl_ca=/a"


@given(password=st.text("@?/:%#xy", min_size=1))
def test_no_part_of_a_password_of_delimiters_is_shown(password: str) -> None:
    assert shown_url(f"mysql://u:{password}@h/db") == f"mysql://u:{MASK}@h/db"
