"""Secrets that show by themselves: tokens with a known beginning, passwords in addresses, headers."""

from __future__ import annotations

import re

from rankscope.mask.names import MASK

_TOKENS = re.compile(
    r"""(?<![A-Za-z0-9_])(?:
        hf_[A-Za-z0-9]{16,}
      | api_org_[A-Za-z0-9]{16,}
      | sk-[A-Za-z0-9_-]{16,}
      | [rs]k_(?:live|test)_[A-Za-z0-9]{16,}
      | gsk_[A-Za-z0-9]{20,}
      | nvapi-[A-Za-z0-9_-]{20,}
      | wandb_v1_[A-Za-z0-9_]{20,}
      | r8_[A-Za-z0-9]{30,}
      | (?:AKIA|ASIA)[A-Z0-9]{16}
      | gh[pousr]_[A-Za-z0-9]{16,}
      | github_pat_[A-Za-z0-9_]{20,}
      | gl(?:pat|dt|rt|cbt)-[A-Za-z0-9_-]{16,}
      | xox[abeprs]-[A-Za-z0-9-]{10,}
      | xapp-[0-9]-[A-Za-z0-9-]{10,}
      | AIza[A-Za-z0-9_-]{30,}
      | ya29\.[A-Za-z0-9_-]{16,}
      | GOCSPX-[A-Za-z0-9_-]{16,}
      | npm_[A-Za-z0-9]{30,}
      | pypi-[A-Za-z0-9_-]{32,}
      | dckr_pat_[A-Za-z0-9_-]{20,}
      | dop_v1_[a-f0-9]{32,}
      | dapi[a-f0-9]{32}
      | hv[sb]\.[A-Za-z0-9_-]{20,}
      | SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}
      | tskey-[A-Za-z0-9-]{16,}
      | AGE-SECRET-KEY-[A-Z0-9]{16,}
      | (?:bot)?[0-9]{8,10}:AA[A-Za-z0-9_-]{32,}
      | (?<!-)eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*
    )""",
    re.VERBOSE,
)
# Everything up to the last @ before a slash or a space: a password may hold one.
_URL_PASSWORD = re.compile(r"((?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]+://[^\s/:@]*:)[^\s/]+@")
_URL_TOKEN = re.compile(r"((?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]+://)[^\s/:@]{20,}@")
_SIGNATURE = re.compile(
    r"([?&](?:sig|signature|x-amz-signature|x-amz-credential|x-goog-signature)=)[^\s&\"']+", re.IGNORECASE
)
_HOOK = re.compile(
    r"(hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/"
    r"|\.webhook\.office\.com/)[A-Za-z0-9@/_-]+"
)
_BOT = re.compile(r"(api\.telegram\.org/(?:file/)?bot)[0-9]+:[A-Za-z0-9_-]+")
_LOGIN = re.compile(r"(\bwandb\s+login\s+(?:--?[a-z-]+\s+){0,3})[A-Za-z0-9]{32,}")
_NETRC = re.compile(r"(\blogin\s{1,9}\S{1,200}\s{1,9}password\s{1,9})\S+")
_BEARER = re.compile(r"""\b(bearer\s+)[^\s"']{6,}""", re.IGNORECASE)
_BASIC = re.compile(r"""\b(basic\s+)[A-Za-z0-9+/]{8,}={1,2}(?![A-Za-z0-9])""", re.IGNORECASE)
_COOKIE = re.compile(r"""((?:set-)?cookie\\{0,8}["']?:\s*).+""", re.IGNORECASE)
_OF_CONNECTION = r"(?:pwd|accountkey|sharedaccesskey)\s{0,9}=\s{0,9}"
_CONNECTION = re.compile(rf"(;\s{{0,9}}{_OF_CONNECTION})[^;\s\"']+", re.IGNORECASE)
_CONNECTION_START = re.compile(
    rf"((?<![^\s\"'=]){_OF_CONNECTION})[^;\s\"'/]{{1,512}}(?=;\s{{0,9}}[A-Za-z][A-Za-z ]{{0,40}}=)", re.IGNORECASE
)


def without_headers(line: str) -> str:
    """What follows `Cookie:` and `Basic`, and the passwords of connections."""
    lower = line.lower()
    if "cookie" in lower:
        line = _COOKIE.sub(rf"\g<1>{MASK}", line)
    if "=" not in line:
        return line
    if ";" in line:
        line = _CONNECTION_START.sub(rf"\g<1>{MASK}", _CONNECTION.sub(rf"\g<1>{MASK}", line))
    return _BASIC.sub(rf"\g<1>{MASK}", line) if "basic" in lower else line


def without_shapes(line: str) -> str:
    lower = line.lower()
    if "://" in line:
        line = _URL_TOKEN.sub(rf"\g<1>{MASK}@", _URL_PASSWORD.sub(rf"\g<1>{MASK}@", line))
    if ".com/" in line or ".org/" in line:
        line = _BOT.sub(rf"\g<1>{MASK}", _HOOK.sub(rf"\g<1>{MASK}", line))
    if "sig" in lower or "x-amz" in lower:
        line = _SIGNATURE.sub(rf"\g<1>{MASK}", line)
    if "login" in line:
        line = _NETRC.sub(rf"\g<1>{MASK}", _LOGIN.sub(rf"\g<1>{MASK}", line))
    if "bearer" in lower:
        line = _BEARER.sub(rf"\g<1>{MASK}", line)
    return _TOKENS.sub(MASK, line)
