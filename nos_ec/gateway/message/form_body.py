"""Parses the body of a POST form: first its fields, then its file while the engine reads it.

Source: RFC 7578; "POST object" of the S3 API reference: fields after the file are ignored.
"""

from __future__ import annotations

from collections.abc import Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from nos_ec.gateway.message.body import Source, length_of
from nos_ec.s3.checksums import BodyCheck, Computed, Expected
from nos_ec.s3.errors import S3Error
from nos_ec.s3.post_policy import SizeRange
from nos_ec.s3.request import Request

FIELDS_SIZE_MAX = 20 << 10
"""Maximum bytes of all fields before the file, including their names."""
FIELDS_MAX = 200
BEFORE_SIZE_MAX = 512 << 10
"""Maximum bytes of any kind before the file."""
BOUNDARY_SIZE_MAX = 200
AFTER_SIZE_MAX = 64 << 10
"""Maximum bytes after the file."""


class FormBody:
    """A binary stream of the file. It returns the last bytes only after the whole form has arrived and was verified."""

    def __init__(self, request: Request, source: Source, at_end: Callable[[], None]) -> None:
        """Read the fields before the file. `at_end` is called once the form has arrived. Raises PreconditionFailed if
        the body is not a form, MalformedPOSTRequest, MaxPostPreDataLengthExceededError, InvalidArgument without a file,
        and the S3Errors of `length_of`."""
        self.length = length_of(request, None)
        """Bytes of the whole form, an upper bound for the size of the file."""
        self.computed: Computed | None = None
        self.fields: dict[str, str] = {}
        """The fields before the file, by name in lower case."""
        self.file_name = ""
        self._source = source
        self._at_end = at_end
        self._check = BodyCheck(Expected())
        self._sizes: SizeRange | None = None
        self._buffer = bytearray()
        self._taken = 0
        self._size = 0
        self._after_size = 0
        self._read_fields(_parser(request, self._callbacks()))

    def expect(self, expected: Expected, sizes: SizeRange | None) -> None:
        """Set the checksums and the sizes that the file must have. Call it before the first `read`. Raises
        EntityTooLarge."""
        self._check, self._sizes = BodyCheck(expected), sizes
        self._check.update(bytes(self._buffer))
        self._require_size()

    def read(self, size: int, /) -> bytes:
        """See `ByteStream`. Raises S3Error."""
        while self.computed is None and len(self._buffer) <= size:
            if not self._feed():
                self._finish()
        found = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return found

    # --- parts ------------------------------------------------------------------------------------
    def _callbacks(self) -> dict[str, Callable[..., None]]:
        self._header_name, self._header_value = b"", b""
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._value = bytearray()
        self._known = 0
        self._in_file = self._file_ended = self._ended = False
        return {
            "on_part_begin": self._on_part_begin,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_end": self._on_end,
        }

    def _read_fields(self, parser: MultipartParser) -> None:
        self._parser = parser
        while not self._in_file and not self._file_ended:
            if self._taken > BEFORE_SIZE_MAX:
                raise _too_many_fields()
            if not self._feed():
                raise S3Error("InvalidArgument", "POST requires exactly one file upload per request.")

    def _feed(self) -> bool:
        """Parse the next bytes. Returns False at the end of the body."""
        piece = self._source.next_piece()
        self._taken += len(piece)
        if self._taken > self.length:
            raise S3Error("IncompleteBody", "The body is longer than its declared length.")
        try:
            if piece:
                self._parser.write(piece)
        except FormParserError:
            raise S3Error("MalformedPOSTRequest", "The body is not well-formed multipart/form-data.") from None
        return bool(piece)

    def _finish(self) -> None:
        if self._taken != self.length or not self._ended:
            raise S3Error("IncompleteBody", f"The form ends after {self._taken} of {self.length} bytes.")
        if self._sizes is not None and self._size < self._sizes.bytes_min:
            raise S3Error(
                "EntityTooSmall",
                "Your proposed upload is smaller than the minimum allowed size",
                ProposedSize=str(self._size),
                MinSizeAllowed=str(self._sizes.bytes_min),
            )
        computed = self._check.finish({})
        self._at_end()
        self.computed = computed

    def _require_size(self) -> None:
        if self._sizes is not None and self._size > self._sizes.bytes_max:
            raise S3Error(
                "EntityTooLarge",
                "Your proposed upload exceeds the maximum allowed size",
                MaxSizeAllowed=str(self._sizes.bytes_max),
            )

    def _on_part_begin(self) -> None:
        self._headers, self._name = {}, ""
        self._value.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name, self._header_value = b"", b""

    def _on_headers_finished(self) -> None:
        if self._file_ended:
            return
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._name = options.get(b"name", b"").decode("utf-8", "replace").lower()
        if self._name == "file":
            self._in_file = True
            self.file_name = options.get(b"filename", b"").decode("utf-8", "replace").rpartition("/")[2]

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._file_ended:
            self._after_size += end - start
            if self._after_size > AFTER_SIZE_MAX:
                raise S3Error("MalformedPOSTRequest", "Too many bytes follow the file of the form.")
        elif self._in_file:
            piece = data[start:end]
            self._size += len(piece)
            self._require_size()
            self._check.update(piece)
            self._buffer += piece
        else:
            self._value += data[start:end]
            if self._known + len(self._name) + len(self._value) > FIELDS_SIZE_MAX:
                raise _too_many_fields()

    def _on_part_end(self) -> None:
        if self._in_file:
            self._in_file, self._file_ended = False, True
        elif not self._file_ended:
            if not self._name or self._name in self.fields:
                raise S3Error("MalformedPOSTRequest", f"The field {self._name!r} is repeated, or has no name.")
            if len(self.fields) == FIELDS_MAX:
                raise _too_many_fields()
            self._known += len(self._name) + len(self._value)
            try:
                self.fields[self._name] = self._value.decode()
            except UnicodeDecodeError:
                raise S3Error("MalformedPOSTRequest", f"The field {self._name!r} is not UTF-8.") from None

    def _on_end(self) -> None:
        self._ended = True


def _too_many_fields() -> S3Error:
    return S3Error(
        "MaxPostPreDataLengthExceededError",
        f"There are more than {FIELDS_SIZE_MAX} bytes, or {FIELDS_MAX} fields, before the file.",
    )


def _parser(request: Request, callbacks: dict[str, Callable[..., None]]) -> MultipartParser:
    kind, options = parse_options_header(request.header("content-type"))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 1 <= len(boundary) <= BOUNDARY_SIZE_MAX:
        raise S3Error(
            "PreconditionFailed",
            "At least one of the pre-conditions you specified did not hold",
            Condition="Bucket POST must be of the enclosure-type multipart/form-data",
        )
    return MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
