import pytest

from maskwright.core.errors import InputError
from maskwright.core.secrets import redact

C = "c4n4ry-In-The-Mine"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"https://user:{C}@host:8080/a/b.txt", "https://***@host:8080/a/b.txt"),
        (f"HTTPS://u:p@ss{C}@host/a@1", "HTTPS://***@host/a@1"),
        (f"simplecache::s3://me:{C}@host/a", "simplecache::s3://me:***@host/a"),
        (f"x https://h/a.txt?v=1&token={C}&w=2 y", "x https://h/a.txt?v=1&token=***&w=2 y"),
        (f"(https://h/a?X-Amz-Signature={C}): no.", "(https://h/a?X-Amz-Signature=***): no."),
        (f"https://h/a?X-Amz-Credential={C}%2F&X-Goog-Signature={C}.", None),
        (f"s3://b/a.txt?access_token={C}, then", "s3://b/a.txt?access_token=***, then"),
        (f"https://h/#access_token={C}", "https://h/#access_token=***"),
        (f"https://a.blob.core.windows.net/c/a?sv=2&sig={C}'", "https://a.blob.core.windows.net/c/a?sv=2&sig=***'"),
        (f"{{'Authorization': 'Bearer {C}'}}", None),
        (f"Authorization: Basic {C}==", "Authorization: Basic ***"),
        (f"got {{'client_secret': '{C}', 'n': 1}}", "got {'client_secret': '***', 'n': 1}"),
        (f'{{"hf_token": "{C}"}}', '{"hf_token": "***"}'),
        *(
            (f"'{name}': '{C}'", f"'{name}': '***'")
            for name in ["botToken", "tokens", "x-api-key", "signature", "authorization", "authKey", "SASToken"]
        ),
        *(
            (f"# token: {kind}{'a1' * 17}-{C}", f"# token: {kind}***")
            for kind in ("hf_", "ghp_", "github_pat_", "glpat-")
        ),
        (f"https://u:{C}@h/a and https://u:{C}@h/b?key={C}", "https://***@h/a and https://***@h/b?key=***"),
    ],
)
def test_secrets_in_addresses_and_headers_are_taken_out(text, expected):
    found = redact(text)
    assert C not in found
    assert expected in (None, found)
    assert redact(found) == found


def test_other_text_stays():
    for text in (
        "corpus/*.txt:3: byte 0xe9 is not UTF-8",
        "gs://bucket/tokens/key/a.txt",
        "abfs://container@account.dfs.core.windows.net/a.txt",
        "ssh://me@host/a",
        "https://host/pkg@1.2/a.txt?version=3&page=2#top",
        "is b@d: a@b.c, learning_rate=0.1, tokens=300, key: value",
        "'<mask>' is not '<pad>'; {'mask_token': '<mask>'}",
        "--set schedule.steps=100",
        "/data/hf_models_of_the_whole_group/roberta-base, glpat-1, ghp_",
        'its config.json has "tokenizer_class": "GPT2Tokenizer" and "eos_token": "<|endoftext|>"',
        "{'author': 'Ada Lovelace', 'signal': 'SIGTERM-143', 'keyword': 'masked-lm', 'pad_token': '<|endoftext|>'}",
        "memory://corpus/?.txt",
    ):
        assert redact(text) == text


def test_values_of_secret_variables_alone_are_taken_out(tmp_path, monkeypatch):
    for name in (
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
        "DB_PASSWORD",
        "db_passwd",
        "GH_TOKENS",
        "APIKEY",
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, f"{C}/+")
            assert redact(f"denied: {C}/+ for {C}%2F%2B") == "denied: *** for ***", name
            patch.setenv(name, f"{C}-new")
            assert redact(f"denied: {C}/+, {C}-new") == f"denied: {C}/+, ***"
    others = {"TOKENIZERS_PARALLELISM": "sometimes", "KEYBOARD": "dvorak-german", "MONKEY": "marmoset-of-the-lab"}
    others |= {"MY_TOKEN": "false", "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path)}
    for name, value in others.items():
        monkeypatch.setenv(name, value)
    assert redact(text := " ".join(others.values())) == text


def test_an_error_keeps_its_form():
    error = InputError(f"see https://h/a?token={C}", where=f"https://u:{C}@h/b?key={C}", fix=f"ask https://u:{C}@h")
    assert str(error) == "https://***@h/b?key=***: see https://h/a?token=***. Fix: ask https://***@h"
