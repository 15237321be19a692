"""What people and terminals are shown."""

from __future__ import annotations

import json

import pytest

from penstock.text import redacted, redacted_json

LONG = 1 << 20


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://me:pass@bucket/x?sig=1 and secret_key=abc", "s3://***@bucket/x?sig=*** and secret_key=***"),
        ("abfss://container@account/x", "abfss://container@account/x"),
        ("ABFS://container@account/x", "ABFS://container@account/x"),
        ("abfss://me:pass@account/x", "abfss://***@account/x"),
        ("xabfss://me@account/x", "xabfss://***@account/x"),
        ("http://a@b@c/d", "http://***@c/d"),
        ("<s3://a?x=1&y=2>s3://b?z=3", "<s3://a?x=***&y=***>s3://b?z=***"),
        ("is it so?a=1", "is it so?a=1"),
        ('{"my.secret_id": "abc"}', '{"my.secret_id": "***"}'),
        ("token: Bearer abc, more", "token: ***, more"),
        (f"{'token_' * 50}=abc", f"{'token_' * 50}=***"),
    ],
)
def test_secrets_are_hidden_and_the_rest_stays(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "part",
    ["x", "token", "a.", "a://", "://a@", "secret ", "token=", "a?", "password: ", "://x?=", "access_", "key\\'"],
)
def test_a_long_text_that_was_made_to_be_slow_is_not(part: str) -> None:
    """In proportion to its length this takes milliseconds; with its square, hours. The limit of every test tells."""
    assert "me:pass" not in redacted(part * (LONG // len(part)) + " s3://me:pass@bucket")


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ('{"tokens": 2, "secret": null, "x": {"password": {"a": 1}}}',) * 2,
        (r'{"why": "bad token:\nabc\ndef"}', r'{"why": "bad token:\n***\ndef"}'),
        (
            r'{"why": "say \"password\": \"abc\" to s3://me:pass@x"}',
            r'{"why": "say \"password\": \"***\" to s3://***@x"}',
        ),
        (r'["C:\\token\\", 1, "s3://me:pass@x/\u2028"]', '["C:\\\\token\\\\", 1, "s3://***@x/\u2028"]'),
    ],
)
def test_secrets_inside_json_are_hidden_and_it_stays_json(document: str, shown: str) -> None:
    assert redacted_json(document) == shown
    json.loads(redacted_json(document))


@pytest.mark.parametrize("part", ['"token', "token\\n", "://", '"', "\\", "x"])
def test_a_long_string_in_json_takes_no_longer_than_its_text(part: str) -> None:
    assert "me:pass" not in redacted_json(json.dumps([part * (LONG // len(part)) + " s3://me:pass@bucket"]))
