"""The section of the S3 gateway."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from nos_ec.settings.section import DAY, Section
from nos_ec.settings.values import Count, Flag, NonEmptyPath

_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""The names that Kafka allows, from org.apache.kafka.common.internals.Topic."""

_DOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")


def _networks(value: object) -> object:
    if isinstance(value, str):
        for network in _networks_of(value):
            if not network.prefixlen:
                raise ValueError(f"{network} contains every address, so every client could claim any address")
    return value


def _networks_of(text: str) -> list[IPv4Network | IPv6Network]:
    return [ip_network(name) for part in text.split(",") if (name := part.strip())]


def _topics(value: object) -> object:
    if isinstance(value, str):
        for topic in _topics_of(value):
            if not _TOPIC.fullmatch(topic):
                raise ValueError(f"{topic!r} is not a valid topic; use 1 to 249 letters, digits, '.', '_' and '-'")
    return value


def _topics_of(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _domains(value: object) -> object:
    if isinstance(value, str):
        for domain in _domains_of(value):
            if not _DOMAIN.fullmatch(domain):
                raise ValueError(f"{domain!r} is not a domain")
    return value


def _domains_of(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip().lower())]


class S3Settings(Section):
    """The S3 gateway, `nos-ec s3 serve` (S3.md)."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=200,
        description="Address that the gateway listens on. Set certificate_file and key_file, or put a TLS proxy in"
        " front of it, before you give other machines access.",
    )
    port: Count = Field(
        default=9488, ge=0, le=65_535, description="TCP port that the gateway listens on; 0: a free one."
    )
    certificate_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="PEM file with the chain of certificates for HTTPS, the server's own first. None: plain HTTP. A"
        " renewed certificate is served without a restart. A relative path in a file starts at the file's folder.",
    )
    key_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="PEM file with the private key of the certificate, without a passphrase. Other users must not be"
        " able to read it. A relative path in a file starts at the file's folder.",
    )
    region: str = Field(
        default="us-east-1",
        pattern=r"^[0-9A-Za-z_-]{1,64}$",
        description="Region that the gateway reports. Clients may sign for any region, but can create buckets only in"
        " this one.",
    )
    domains: Annotated[str, BeforeValidator(_domains)] = Field(
        default="",
        title="domains such as s3.example.com, separated by commas",
        max_length=4000,
        description="Domains of the gateway: requests to the host BUCKET.DOMAIN are for that bucket. Path style always"
        " works.",
    )
    website_domains: Annotated[str, BeforeValidator(_domains)] = Field(
        default="",
        title="domains such as s3.example.com, separated by commas",
        max_length=4000,
        description="Domains of websites: the host BUCKET.DOMAIN serves the website of that bucket, as HTML and without"
        " authentication (S3.md). They must not be, or contain, one of `domains`. Empty: no bucket is served as a"
        " website.",
    )
    trusted_proxies: Annotated[str, BeforeValidator(_networks)] = Field(
        default="",
        title="addresses and networks, separated by commas",
        max_length=4000,
        description="Proxies in front of the gateway, such as 10.0.0.7 or 10.1.0.0/16. Their headers X-Forwarded-For,"
        " X-Forwarded-Host and X-Forwarded-Proto are trusted; the same headers of other clients are ignored.",
    )
    processes: Count = Field(
        default=1,
        ge=1,
        le=256,
        description="Processes of the gateway, which share its port. Python uses one core for each process, so use as"
        " many as there are cores. Each process has its own connections and landing segments.",
    )
    threads: Count = Field(
        default=16,
        ge=1,
        le=1000,
        description="Requests that a process serves at the same time, plus as many with bodies of more than 256 KiB."
        " Uploads that wait for a slow client do not count, while they have no more than 128 MiB in memory. GETs take"
        " less CPU with few threads; PUTs take less with many, because they are grouped (S3.md).",
    )
    requests_max: Count = Field(
        default=400,
        ge=1,
        le=100_000,
        description="Maximum number of open requests of a gateway process. Further requests are answered with 503"
        " SlowDown, after which clients try again later.",
    )
    access_log: Flag = Field(
        default=False,
        description="Log each request with its account, operation, bucket, key, status, sizes and times. Needs"
        " logging.level = info or debug.",
    )
    abort_uploads_days: Count = Field(
        default=7,
        ge=0,
        le=3650,
        description="Age in days at which GC aborts an incomplete multipart upload. 0: never.",
    )
    master_key: SecretStr | None = Field(
        default=None,
        title="a string of 64 hexadecimal digits",
        description="Master key that encrypts the secrets of access keys. Prefer NOS_EC_S3__MASTER_KEY in the"
        " environment, or master_key_file.",
    )
    master_key_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="File that contains the master key, as an alternative to master_key. Further lines may contain"
        " older master keys. Other users must not be able to read it. A relative path in a file starts at the file's"
        " folder.",
    )

    encrypt: Flag = Field(
        default=False,
        description="Encrypt all new objects that arrive over S3, as if each bucket had the default encryption AES256."
        " Needs a key: nos-ec s3 encryption-key add. Uploads in parts are then refused, because they cannot be"
        " encrypted (S3.md).",
    )

    notification_topics: Annotated[str, BeforeValidator(_topics)] = Field(
        default="",
        title="topics, separated by commas",
        max_length=4000,
        description="Kafka topics to which buckets may send notifications of changes of their objects (S3.md). Create"
        " them first. Set it alike for gateways, library programs, producers and GC. Empty: buckets cannot have"
        " notifications, and changes cost nothing more.",
    )
    notification_events_max: Count = Field(
        default=4_000_000,
        ge=1,
        le=1_000_000_000,
        description="Notifications that may wait in the database while Kafka does not take them, about 1 KB each: the"
        " default holds an hour of 1000 changes a second. Further changes are answered with 503 in buckets that send to"
        " a topic for which its share of them wait (S3.md).",
    )

    kms_url: str | None = Field(
        default=None,
        title="an https:// URL, or one of http://127.0.0.1",
        pattern=r"^(https://|http://(127\.0\.0\.1|localhost)[:/])[^\s?#@]+$",
        max_length=500,
        description="Key service for SSE-KMS that speaks the protocol of Vault's transit engine, such as OpenBao; its"
        " path is the engine's, by default /transit. HTTP is accepted for this machine only. None: KMS keys are"
        " protected by the master key alone.",
    )
    kms_token_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="File with the token for kms_url. It is read for each call, so it can be renewed without a restart."
        " Other users must not be able to read it. A relative path in a file starts at the file's folder.",
    )
    kms_ca_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="PEM file with the certificates that kms_url is verified with. None: those of the system. A"
        " relative path in a file starts at the file's folder.",
    )

    @property
    def topics(self) -> list[str]:
        """The topics that buckets may send notifications to."""
        return _topics_of(self.notification_topics)

    @property
    def abort_uploads_ms(self) -> int:
        """abort_uploads_days in milliseconds."""
        return self.abort_uploads_days * DAY

    @property
    def trusted_networks(self) -> list[IPv4Network | IPv6Network]:
        """The addresses and networks of trusted proxies."""
        return _networks_of(self.trusted_proxies)

    @property
    def domain_names(self) -> list[str]:
        """The domains, in lower case."""
        return _domains_of(self.domains)

    @property
    def website_domain_names(self) -> list[str]:
        """The domains of websites, in lower case."""
        return _domains_of(self.website_domains)
