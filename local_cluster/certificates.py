"""Certificates and kubeconfigs of the local cluster, made with the openssl command."""

import base64
import json
import subprocess
from pathlib import Path

DAYS = "3650"


def _openssl(*arguments: str, stdin: str | None = None) -> str:
    result = subprocess.run(["openssl", *arguments], input=stdin, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"openssl {' '.join(arguments)} failed: {result.stderr.strip()}")
    return result.stdout


class Authority:
    """A certificate authority in ``directory``: it issues certificates, each made once and then kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self.key = directory / "ca.key"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self.certificate.exists():
            self._new_key(self.key)
            # OpenSSL reads its extensions from a file on every version that is still around; `-addext` needs its own.
            extensions = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign,digitalSignature\n"
            self._sign(self.certificate, self.key, "/CN=grpo-local", extensions, self_signed=True)

    def issue(
        self, name: str, subject: str, *, addresses: tuple[str, ...] = (), names: tuple[str, ...] = ()
    ) -> tuple[Path, Path]:
        """Certificate and key for ``subject`` (``/O=system:nodes/CN=system:node:a``), for client and server alike."""
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        if not certificate.exists():
            alternatives = ",".join([*(f"IP:{ip}" for ip in addresses), *(f"DNS:{dns}" for dns in names)])
            extensions = "keyUsage=critical,digitalSignature\nextendedKeyUsage=clientAuth,serverAuth\n"
            extensions += f"subjectAltName={alternatives}\n" if alternatives else ""
            self._new_key(key)
            self._sign(certificate, key, subject, extensions)
        return certificate, key

    def key_pair(self, name: str) -> tuple[Path, Path]:
        """A bare private and public key, which signs and verifies service-account tokens."""
        private, public = self.directory / f"{name}.key", self.directory / f"{name}.pub"
        if not public.exists():
            self._new_key(private)
            _openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))
        return private, public

    def kubeconfig(self, path: Path, name: str, subject: str, server: str) -> Path:
        """Write a kubeconfig (JSON, which is YAML) for ``subject``, with its certificates inside."""
        certificate, key = self.issue(name, subject)
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "grpo-local",
                    "cluster": {"server": server, "certificate-authority-data": _encoded(self.certificate)},
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)},
                }
            ],
            "contexts": [{"name": "grpo-local", "context": {"cluster": "grpo-local", "user": name}}],
            "current-context": "grpo-local",
        }
        write_private(path, json.dumps(content, indent=1) + "\n")
        return path

    def _new_key(self, path: Path) -> None:
        write_private(path, _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"))

    def _sign(self, certificate: Path, key: Path, subject: str, extensions: str, *, self_signed: bool = False) -> None:
        request = self.directory / "request.csr"
        extension_file = self.directory / "extensions"
        extension_file.write_text(extensions)
        partial = certificate.with_suffix(".partial")
        _openssl("req", "-new", "-key", str(key), "-subj", subject, "-out", str(request))
        signer = (
            ["-signkey", str(key)]
            if self_signed
            else ["-CA", str(self.certificate), "-CAkey", str(self.key), "-CAcreateserial"]
        )
        common = ["-req", "-in", str(request), "-days", DAYS, "-sha256", "-extfile", str(extension_file)]
        _openssl("x509", *common, *signer, "-out", str(partial))
        # A run that is killed here leaves no certificate, and the next one makes key and certificate anew.
        partial.rename(certificate)


def write_private(path: Path, text: str) -> None:
    """Replace ``path`` whole, readable by its owner alone."""
    partial = path.with_name(path.name + ".partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.rename(path)


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
