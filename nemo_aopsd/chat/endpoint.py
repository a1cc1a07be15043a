"""Where the server is and what must never be printed: the key, and the credentials of the URL."""

import base64
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from nemo_aopsd.errors import UserError

_MASK = "[redacted]"
_LONG = 8  # characters of a key that is no dummy
_REMEDY = (
    "--base-url (it usually ends in /v1), --model, and the key in the environment variable that --api-key-env names"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`url` holds no credentials; they are in `headers`, which `repr` does not show.

    `settings` names what the user set, for messages that say what to check.
    """

    url: str
    headers: dict[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    settings: str = _REMEDY

    def redact(self, text: str) -> str:
        """A message with every form of every secret masked."""
        return _mask(text, self.secrets)

    def redact_answer(self, text: str) -> str:
        """A model's answer, likewise; but a dummy key such as `1` or `EMPTY` must not eat up its mathematics."""
        return _mask(text, [secret for secret in self.secrets if len(secret) >= _LONG])


def read_key(variable: str, *, option: str = "--api-key-env") -> str | None:
    """The key in an environment variable without the blanks and line breaks around it; None if nothing is left.

    Raises UserError, without any part of the key, if no HTTP header can carry it.
    """
    key = os.environ.get(variable, "").strip()  # `export KEY="$(cat file)"` and .env files leave line breaks
    for position, character in enumerate(key, start=1):
        if not (character.isascii() and character.isprintable()):
            kind = "a control character" if character.isascii() else "not ASCII"
            found = f"character {position} of the key in the environment variable {variable} is {kind}"
            remedy = "Export the key anew, without quotation marks or line breaks from where it was copied."
            raise UserError(f"{option}: {found}; expected printable ASCII. {remedy}")
    return key or None


def parse_endpoint(
    base_url: str, api_key: str | None, *, option: str = "--base-url", settings: str = _REMEDY
) -> Endpoint:
    """Split credentials off `http://user:password@host/v1`; `option` is what the user calls the URL.

    Raises UserError (without the URL's secrets) on a bad URL.

    >>> parse_endpoint("http://me:hush@host:8000/v1", None).url
    'http://host:8000/v1'
    """
    base_url = base_url.strip()
    if not base_url.isprintable() or " " in base_url:  # `urlsplit` drops line breaks without a word
        raise UserError(f"{option}: a blank or control character inside the URL. Remove it, or write %20 for a blank.")
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError:  # which may quote the password
        raise UserError(f"{option}: not a URL. Expected something like http://localhost:8000/v1.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise UserError(f"{option}: expected http://HOST:PORT/v1 or https://HOST/v1. Give the scheme and the host.")
    if parts.query or parts.fragment:
        raise UserError(f"{option}: takes no `?query` or `#fragment`. Put a key into the environment instead.")
    host = f"[{host}]" if ":" in host else host
    url = urlunsplit((parts.scheme, f"{host}:{port}" if port else host, parts.path, "", ""))
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    secrets = [api_key, password, parts.password]
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    if parts.username or parts.password:
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {token}"
        secrets += [token, f"{user}:{password}", f"{parts.username}:{parts.password}"]
        secrets += [] if password else [user]  # a token in the place of the user name
    return Endpoint(url, headers, tuple(secret for secret in secrets if secret), settings)


def _mask(text: str, secrets: Iterable[str]) -> str:
    """Longest first, so that no tail is left over; as in URLs and in JSON, too."""
    forms = {form for secret in secrets for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, _MASK)
    return text
