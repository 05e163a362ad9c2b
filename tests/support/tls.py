"""Certificates for tests, good and bad, and a server's side of TLS."""

import ssl
import subprocess
from pathlib import Path


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make(folder: Path) -> Path:
    """Put into a folder an authority, and certificates of it: good, for another host, expired; and one that signs
    itself."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    authority = "basicConstraints=critical,CA:TRUE"
    usage = "keyUsage=critical,keyCertSign,cRLSign"
    _openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=Test CA",
             "-addext", authority, "-addext", usage)  # fmt: skip
    (folder / "index.txt").write_text("")
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nnew_certs_dir=.\nrand_serial=yes\ndefault_md=sha256\n"
        "policy=p\ncopy_extensions=copy\nunique_subject=no\n[p]\ncommonName=supplied\n"
    )
    spans = {"good": ("20200101000000Z", "20991231000000Z"), "expired": ("20200101000000Z", "20210101000000Z")}
    for name, names in (
        ("good", "DNS:localhost,DNS:a.localhost,IP:127.0.0.1"),
        ("other", "DNS:other.example"),
        ("expired", "DNS:localhost,IP:127.0.0.1"),
    ):
        begin, end = spans.get(name, spans["good"])
        _openssl(folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}",
                 "-addext", f"subjectAltName={names}")  # fmt: skip
        _openssl(folder, "ca", "-batch", "-config", "ca.cnf", "-cert", "ca.pem", "-keyfile", "ca.key", "-in",
                 f"{name}.csr", "-out", f"{name}.pem", "-startdate", begin, "-enddate", end, "-notext")  # fmt: skip
    _openssl(folder, "req", "-x509", *key, "-keyout", "self.key", "-out", "self.pem", "-days", "2", "-subj",
             "/CN=self", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")  # fmt: skip
    return folder


def identity(folder: Path, name: str) -> ssl.SSLContext:
    """A server's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context
