"""The Security Token Service of a gateway: issues temporary credentials to the holder of an access key.

Roles have no trust policies here, so an account may assume only roles of its own, and a role adds no rights: the
session has the rights of the account, restricted by its session policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nos_ec.gateway.auth.access import Access, Sender
from nos_ec.gateway.message.body import BodyWanted, Source
from nos_ec.gateway.message.call import denied
from nos_ec.gateway.message.failures import to_s3_error
from nos_ec.gateway.message.reply import Reply
from nos_ec.ports.clock import Clock
from nos_ec.s3 import sts
from nos_ec.s3.errors import S3Error
from nos_ec.s3.policy import session_policy_of
from nos_ec.s3.request import Request
from nos_ec.s3.signing import read_claim, verify

_CODES: Mapping[str, str] = {
    "InvalidAccessKeyId": "InvalidClientTokenId",
    "InvalidToken": "InvalidClientTokenId",
    "MalformedPolicy": "MalformedPolicyDocument",
    "SlowDown": "Throttling",
}
"""The codes of this service for errors of S3."""


@dataclass(slots=True)
class TokenAnswer:
    """The answer to a request, and what is known about it: the action, the account, and the code of the error, each
    empty or None as long as it is not known."""

    action: str = ""
    account: str | None = None
    code: str = ""
    reply: Reply = field(default_factory=Reply)


class SecurityTokens:
    """Safe to call from several threads."""

    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock

    def answer(self, request: Request, source: Source, request_id: str, admit: Callable[[str], None]) -> TokenAnswer:
        """Serve a request. `admit` gets the account, and raises SlowDown if it has reached its rate. Raises
        BodyWanted."""
        answer = TokenAnswer()
        try:
            body = self._serve(request, _body_of(source), request_id, answer, admit)
            answer.reply = Reply(200, {"content-type": "text/xml", "cache-control": "no-store"}, body)
        except BodyWanted:
            raise
        except Exception as error:
            refusal = to_s3_error(error, request_id=request_id)
            code = answer.code = _CODES.get(refusal.code, refusal.code)
            refusal = S3Error(code, refusal.message)
            answer.reply = Reply(refusal.status, {"content-type": "text/xml"}, sts.error_answer(refusal, request_id))
        return answer

    def _serve(
        self, request: Request, body: bytes, request_id: str, answer: TokenAnswer, admit: Callable[[str], None]
    ) -> bytes:
        claim = read_claim(request, self._clock.now_ms(), sts.SERVICE, body)
        if claim is None:
            raise S3Error("MissingAuthenticationToken", "The request must be signed.")
        sender = self._access.sender(claim.access_key, claim.token)
        verify(request, claim, None if sender is None else sender.secret)
        assert sender is not None
        answer.account = sender.account
        admit(sender.account)
        wanted = sts.wanted_of(body)
        answer.action = wanted.action
        if wanted.action == "GetCallerIdentity":
            arn = sts.arn_of(sender.account) if sender.session is None else sender.session.arn
            return sts.caller_identity(sender.account, arn, claim.access_key, request_id)
        made = self._access.tokens.issue(self._session(sender, claim.access_key, wanted))
        return sts.issued(wanted.action, made, request_id)

    def _session(self, sender: Sender, access_key: str, wanted: sts.Wanted) -> sts.Session:
        """Return the session that is asked for. Raises AccessDenied for a sender that is itself in a session, because
        a new session could last longer, and for a role of another account; MalformedPolicy, NotImplemented."""
        if sender.session is not None:
            raise denied()
        if wanted.role and wanted.role_account != sender.account:
            raise S3Error("AccessDenied", f"The role's ARN must name the account of the access key, {sender.account}.")
        if wanted.policy:
            session_policy_of(wanted.policy.encode())
        return sts.Session(
            sender.account,
            access_key,
            sender.generation,
            self._clock.now_ms() // 1000 + wanted.seconds,
            wanted.role,
            wanted.session,
            wanted.policy,
        )


def _body_of(source: Source) -> bytes:
    """Return the whole body. Raises ValidationError if it is too long, BodyWanted."""
    body = b""
    while piece := source.next_piece():
        body += piece
        if len(body) > sts.BODY_BYTES_MAX:
            raise sts.invalid(f"The body must have at most {sts.BODY_BYTES_MAX} bytes.")
    return body
