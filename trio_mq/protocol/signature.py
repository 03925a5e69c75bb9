"""Signatures of requests, for clusters with access control.

In: a command and the keys of a user. Out: the same command with ``AccessKey``, ``Signature`` and, where there is one,
``SecurityToken`` in its header. Pure. Source of the rule: Apache AclClientRPCHook, AclSigner (HMAC-SHA1 over the
values of the header in the order of their names, then the body).
"""

from __future__ import annotations

import base64
import hashlib
import hmac

import attrs

from .command import Command

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105  (the name of a header field)
SIGNATURE = "Signature"


def signed(command: Command, access_key: str, secret_key: str, token: str | None) -> Command:
    """The command as a broker with access control takes it."""
    ext = {name: text for name, text in command.ext.items() if name != SIGNATURE}
    ext[ACCESS_KEY] = access_key
    if token:
        ext[SECURITY_TOKEN] = token
    content = "".join(ext[name] for name in sorted(ext)).encode() + command.body
    digest = hmac.new(secret_key.encode(), content, hashlib.sha1).digest()
    ext[SIGNATURE] = base64.b64encode(digest).decode()
    return attrs.evolve(command, ext=ext)
