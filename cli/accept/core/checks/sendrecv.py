"""Send and receive: every rank sends to the next and receives from the one before."""

from __future__ import annotations

from accept.core.checks import collectives

SENDRECV = collectives.make("sendrecv", "send to the next rank", worth=42)
CHECK = SENDRECV
