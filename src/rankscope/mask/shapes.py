"""Secrets that show by themselves: tokens with a known beginning, passwords in addresses, private keys."""

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
_LOGIN = re.compile(r"(\bwandb\s+login\s+(?:--?[a-z-]+\s+){0,3})[A-Za-z0-9]{32,}")
_AUTHORIZATION = re.compile(
    r"""(authorization["']?\s*[:=]\s*["']?)(?:(?:bearer|basic|token|digest)\s+)?[^\s"']+""", re.IGNORECASE
)
_BEARER = re.compile(r"""\b(bearer\s+)[^\s"']{6,}""", re.IGNORECASE)
_BASIC = re.compile(r"""\b(basic\s+)[A-Za-z0-9+/]{8,}={1,2}(?![A-Za-z0-9])""", re.IGNORECASE)
_COOKIE = re.compile(r"""((?:set-)?cookie["']?:\s*).+""", re.IGNORECASE)
_CONNECTION = re.compile(r"(;\s{0,9}(?:pwd|accountkey|sharedaccesskey)\s{0,9}=\s{0,9})[^;\s\"']+", re.IGNORECASE)

# The lines of a key, and the headers of an encrypted one; in JSON and in a repr the line ends are escaped.
_GAP = r"(?:\\[nr]|[\s>\#|])"
_LAST = r"[A-Za-z0-9+/=]{1,15}(?=(?:\\[nr]|\s){0,9}-----END)"
_KEY = re.compile(
    rf"(-----BEGIN[ A-Z]{{0,40}} PRIVATE KEY(?: BLOCK)?-----)"
    rf"((?:{_GAP}|[A-Za-z-]{{3,20}}:[ ][^\n\\]{{0,100}}|[A-Za-z0-9+/=]{{16,}}|{_LAST})+)"
)
_KEY_LINE = re.compile(r"[\s>#|]*[A-Za-z0-9+/=]{16,}\s*")
_SHORT_KEY_LINE = re.compile(r"[\s>#|]*[A-Za-z0-9+/=]{1,76}\s*")


def without_headers(line: str) -> str:
    """What follows `Authorization:` and `Cookie:`."""
    line = _COOKIE.sub(rf"\g<1>{MASK}", _AUTHORIZATION.sub(rf"\g<1>{MASK}", line))
    return _BASIC.sub(rf"\g<1>{MASK}", _CONNECTION.sub(rf"\g<1>{MASK}", line))


def without_shapes(line: str) -> str:
    if "://" in line:
        line = _URL_TOKEN.sub(rf"\g<1>{MASK}@", _URL_PASSWORD.sub(rf"\g<1>{MASK}@", line))
    line = _SIGNATURE.sub(rf"\g<1>{MASK}", _HOOK.sub(rf"\g<1>{MASK}", _LOGIN.sub(rf"\g<1>{MASK}", line)))
    return _TOKENS.sub(MASK, _BEARER.sub(rf"\g<1>{MASK}", line))


def without_private_keys(text: str) -> str:
    """As many lines as before."""
    if "PRIVATE KEY" not in text:
        return text
    text = _KEY.sub(lambda key: f"{key[1]}{MASK}" + "\n" * key[2].count("\n"), text)
    return "\n".join(_without_headless_keys(text.split("\n")))


def _without_headless_keys(lines: list[str]) -> list[str]:
    """Of a key whose beginning is cut off, as in the last lines of a log."""
    for number, line in enumerate(lines):
        if "-----END" not in line or "PRIVATE KEY" not in line or "-----BEGIN" in line:
            continue
        at = number - 1
        while at >= 0 and (_KEY_LINE if at < number - 1 else _SHORT_KEY_LINE).fullmatch(lines[at]):
            lines[at] = MASK
            at -= 1
    return lines
