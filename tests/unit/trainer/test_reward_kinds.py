"""Functions in modules, on servers and in classifiers, through the pool that training uses."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_api.reward_items import reward_item
from grpo_api.rewards.rows import RewardRow
from grpo_api.spec.reward import ClassifierReward, RewardFunction, RewardSpec
from grpo_trainer.errors import UserInputError
from grpo_trainer.rewards.classifier import Classifier
from grpo_trainer.rewards.pool import RewardPool


def row(completion: str, ground_truth: Any = "7", **columns: Any) -> RewardRow:
    return RewardRow("What is 3 + 4?", completion, ground_truth, "sums", {"level": 1}, columns)


@pytest.fixture
def pool_of(tmp_path):
    """Makes pools of one function."""
    pools = []

    def make(function: dict[str, Any], **spec: Any) -> RewardPool:
        functions = [RewardFunction.model_validate({"name": "fn"} | function)]
        spec = {"timeout_seconds": 60.0, "workers": 1} | spec
        pools.append(RewardPool(RewardSpec(functions=functions, **spec), str(tmp_path), str(tmp_path / "tokens")))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


# Modules


@pytest.fixture
def package(tmp_path):
    """A package on a volume, whose module imports its neighbour."""
    folder = tmp_path / "volume" / "mine" / "rules"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "numbers.py").write_text("SEVEN = '7'\n")
    (folder / "sums.py").write_text(
        "from mine.rules.numbers import SEVEN\n\n"
        "def right(solution_str, factor=1.0):\n    return factor * (solution_str == SEVEN)\n\n"
        "def lengths(completions, **columns):\n    return [len(text) for text in completions]\n\n"
        "def fails(solution_str):\n    return 1 / 0\n"
    )
    (folder / "broken.py").write_text("x = 1\ny = x / 0\n")
    return str(tmp_path / "volume")


def test_module_of_a_volume(pool_of, package):
    module = {"path": "mine.rules.sums:right", "directory": package}
    pool = pool_of({"module": module})
    pool.check(row("7"))
    assert pool.score([row("7"), row("8")]).rewards == [1.0, 0.0]
    assert pool_of({"module": module | {"params": {"factor": 3}}}).score([row("7")]).rewards == [3.0]
    assert pool_of({"module": module | {"path": "mine.rules.sums:lengths"}}).score([row("77"), row("")]).rewards == [
        2,
        0,
    ]


def test_module_of_the_image_has_to_fit_too(pool_of):
    with pytest.raises(UserInputError, match="fits none of the three signatures") as caught:
        pool_of({"module": {"path": "json:dumps"}}).check(row("7"))
    assert caught.value.reason == "RewardSignatureError"


def test_params_of_inline_python(pool_of):
    source = "def compute_score(solution_str, *, scale, **more):\n    return scale * len(solution_str)\n"
    assert pool_of({"python": {"source": source, "params": {"scale": 2.5}}}).score([row("ab")]).rewards == [5.0]


@pytest.mark.parametrize(
    ("path", "reason", "message"),
    [
        ("mine.rules.nothing:right", "RewardImportError", "No module named 'mine.rules.nothing'"),
        ("mine.rules.sums:wrong", "RewardImportError", "wrong is not defined.* which defines right, lengths, fails"),
        ("mine.rules.broken:right", "RewardImportError", "broken.py, line 2: ZeroDivisionError"),
        ("mine.rules.sums:fails", "RewardError", "sums.py, line 10, in fails: ZeroDivisionError"),
    ],
)
def test_modules_are_refused_before_training(pool_of, package, path, reason, message):
    with pytest.raises(UserInputError, match=message) as caught:
        pool_of({"module": {"path": path, "directory": package}}).check(row("7"))
    assert caught.value.reason == reason


# Servers

Answer = tuple[int, Any, dict[str, str]]


class Server:
    """Answers each request by a function of its number and body; keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.answer: Any = lambda number, body: (200, {"rewards": [float(len(t)) for t in body["completions"]]}, {})
        self.most_at_once = 0
        outer, lock, running = self, threading.Lock(), [0]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    running[0] += 1
                    outer.most_at_once = max(outer.most_at_once, running[0])
                    number = len(outer.requests)
                    outer.requests.append((dict(self.headers), body))
                status, answer, headers = outer.answer(number, body)
                with lock:
                    running[0] -= 1
                if status == 0:
                    self.close_connection = True
                    return
                text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                for key, value in {"Content-Length": str(len(text)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.httpd.server_port}/score"
        threading.Thread(target=self.httpd.serve_forever, daemon=True).start()


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    server.httpd.shutdown()
    server.httpd.server_close()


def http(server: Server, **more: Any) -> dict[str, Any]:
    return {"http": {"url": server.url, "backoffSeconds": 0.01, "concurrency": 1} | more}


def test_request_and_answer(pool_of, server):
    pool = pool_of(http(server, batchSize=2))
    pool.check(row("7", unit="m"))
    rows = [row("7", unit="m"), row("77", 8, unit="s"), row("", None)]
    assert pool.score(rows).rewards == [1.0, 2.0, 0.0]
    (_, first), (_, last) = server.requests[1:]
    assert first == {
        "prompts": ["What is 3 + 4?"] * 2,
        "completions": ["7", "77"],
        "ground_truth": ["7", 8],
        "data_source": ["sums"] * 2,
        "extra_info": [{"level": 1}] * 2,
        "unit": ["m", "s"],
    }
    assert last["completions"] == [""]


def test_a_bare_list_with_null(pool_of, server):
    server.answer = lambda number, body: (200, [1, None, 0.5], {})
    result = pool_of(http(server)).score([row("a"), row("b"), row("c")])
    assert (result.rewards, result.errors) == ([1.0, None, 0.5], {("fn", "none"): 1})


def test_token_is_sent_and_read_anew(pool_of, server, tmp_path):
    file = tmp_path / "tokens" / "fn" / "token"
    file.parent.mkdir(parents=True)
    pool = pool_of(http(server, tokenSecret={"name": "rewards"}))
    assert pool.score([row("a")]).errors == {("fn", "exception"): 1}
    assert server.requests == []
    for token in ("first", "second"):
        file.write_text(token + "\n")
        assert pool.score([row("a")]).rewards == [1.0]
        assert server.requests[-1][0]["Authorization"] == f"Bearer {token}"
    assert pool_of(http(server)).score([row("a")]).rewards == [1.0]
    assert "Authorization" not in server.requests[-1][0]


@pytest.mark.parametrize("failure", [503, 500, 429, 408, 0])
def test_what_may_pass_is_tried_again(pool_of, server, failure):
    server.answer = lambda number, body: (
        (failure, b"", {}) if number < 2 else (200, [1.0] * len(body["completions"]), {})
    )
    assert pool_of(http(server, retries=2)).score([row("a"), row("b")]).rewards == [1.0, 1.0]
    assert len(server.requests) == 3


def test_retries_end(pool_of, server, caplog):
    server.answer = lambda number, body: (503, b"busy", {})
    pool = pool_of(http(server, retries=1))
    result = pool.score([row("a"), row("b")])
    assert result.errors == {("fn", "exception"): 2}
    assert len(server.requests) == 2  # and no further ones for single samples
    assert "answered 503 Service Unavailable: busy (2 attempts)" in caplog.text
    with pytest.raises(UserInputError, match="answered 503"):
        pool.check(row("a"))


def test_retries_end_before_the_pools_limit(pool_of, server):
    """Whose kill would hide the server's answer."""
    server.answer = lambda number, body: (503, b"", {})
    result = pool_of(http(server, retries=20, backoffSeconds=1.0, timeoutSeconds=2.0), timeout_seconds=4.0).score(
        [row("a")]
    )
    assert result.errors == {("fn", "exception"): 1}
    assert 1 <= len(server.requests) <= 4


def test_backoff_and_retry_after(pool_of, server):
    times: list[float] = []

    def answer(number: int, body: dict[str, Any]) -> Answer:
        times.append(time.monotonic())
        return (200, [1.0], {}) if number == 2 else (429, b"", {"Retry-After": "1"} if number == 0 else {})

    server.answer = answer
    assert pool_of(http(server, backoffSeconds=0.4)).score([row("a")]).rewards == [1.0]
    first, second = times[1] - times[0], times[2] - times[1]
    assert first >= 1
    assert second >= 0.4  # twice 0.4, less a half


def test_a_slow_answer_is_a_failed_attempt(pool_of, server):
    release = threading.Event()
    server.answer = lambda number, body: (release.wait(30 if number == 0 else 0), (200, [1.0], {}))[1]
    assert pool_of(http(server, timeoutSeconds=1.0)).score([row("a")]).rewards == [1.0]
    release.set()
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("status", "body", "message", "requests"),
    [
        (401, b"who?", "answered 401 Unauthorized: who?", 1),
        (404, b"", "answered 404", 1),
        (302, b"", "answered 302", 1),
        (422, b"too long", "answered 422", 3),
        (200, b"<html>", "no JSON: <html>", 3),
        (200, {"scores": [1, 2]}, "must hold `rewards`", 3),
        (200, ["1", 2], "returned str '1'; a score must be a number", 3),
        (200, [1.0, 2.0, 3.0], "returned 3 scores for 2 completions", 3),
    ],
)
def test_answers_that_are_not_tried_again(pool_of, server, caplog, status, body, message, requests):
    """Where other rows may fare better, the batch's are sent one at a time."""
    server.answer = lambda number, _: (status, body, {"Location": "/other"} if status == 302 else {})
    result = pool_of(http(server, retries=3)).score([row("a"), row("b")])
    assert result.errors == {("fn", "exception"): 2}
    assert message in caplog.text
    assert len(server.requests) == requests


def test_one_bad_row_of_a_batch_costs_itself_alone(pool_of, server):
    server.answer = lambda number, body: (422, b"", {}) if "bad" in body["completions"] else (
        200, [1.0] * len(body["completions"]), {}
    )  # fmt: skip
    assert pool_of(http(server)).score([row("a"), row("bad"), row("c")]).rewards == [1.0, None, 1.0]


def test_no_server(pool_of, server):
    server.httpd.shutdown()
    server.httpd.server_close()
    with pytest.raises(UserInputError, match=r"127\.0\.0\.1.*refused.*2 attempts"):
        pool_of(http(server, retries=1)).check(row("a"))


def test_concurrency(pool_of, server):
    barrier = threading.Barrier(3, timeout=60)
    server.answer = lambda number, body: (barrier.wait(), (200, [1.0], {}))[1]
    assert pool_of(http(server, concurrency=3, batchSize=1)).score([row("a")] * 3).rewards == [1.0] * 3
    assert server.most_at_once == 3


# Classifiers

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "what", "is", "3", "4", "+", "?", "7", "8", "good", "bad", "user", "model"]


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory) -> dict[int, Path]:
    """Tiny random ones, by number of classes."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder = tmp_path_factory.mktemp("classifiers")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    found = {}
    for classes in (1, 3):
        torch.manual_seed(classes)
        names = {0: "score"} if classes == 1 else {0: "bad", 1: "fair", 2: "good"}
        config = BertConfig(
            vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=32, id2label=names, label2id={name: i for i, name in names.items()},
            initializer_range=0.5,
        )  # fmt: skip
        found[classes] = folder / str(classes)
        BertForSequenceClassification(config).save_pretrained(found[classes])
        tokenizer = BertTokenizerFast(str(folder / "vocab.txt"))
        tokenizer.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} [SEP] {% endfor %}"
        tokenizer.save_pretrained(found[classes])
    return found


def logits(path: Path, *texts: str, special: bool = True) -> list[float]:
    """Of one input, by Transformers alone."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    with torch.no_grad():
        encoded = tokenizer(*texts, return_tensors="pt", add_special_tokens=special)
        found: list[float] = model(**encoded).logits[0].double().tolist()
    return found


def classifier(path: Path | str, **more: Any) -> Classifier:
    """As its process makes it."""
    spec = ClassifierReward.model_validate({"path": str(path)} | more)
    return Classifier(**reward_item(RewardFunction(name="fn", classifier=spec), 1.0)["classifier"])


def test_classifier_in_the_pool(pool_of, classifiers):
    """In a process of its own: the others start without torch."""
    functions = [
        {"name": "model", "classifier": {"path": str(classifiers[3]), "label": "good", "batchSize": 2}},
        {"name": "rule", "builtin": {"rule": "exact_match"}},
    ]
    spec = RewardSpec(functions=[RewardFunction.model_validate(one) for one in functions], timeout_seconds=100)
    pool = RewardPool(spec)
    texts = ["7", "good good good 8", "is bad ?"]
    pool.check(row("7"))
    result = pool.score([row(text) for text in texts])
    pool.close()
    assert not result.errors
    assert result.function_scores[0] == pytest.approx([logits(classifiers[3], text)[2] for text in texts], abs=1e-5)
    assert result.function_scores[1] == [1.0, 0.0, 0.0]


def test_output_and_label_of_a_classifier(classifiers):
    texts = ["7", "good good good 8", "is bad ?"]
    rows = [row(text) for text in texts]
    one, three = ([logits(classifiers[classes], text) for text in texts] for classes in (1, 3))

    def close(expected: list[float]) -> Any:
        return pytest.approx(expected, abs=1e-5)

    assert classifier(classifiers[1])(rows) == close([row[0] for row in one])
    assert classifier(classifiers[3], label="0")(rows) == close([row[0] for row in three])
    shares = torch.tensor(three).softmax(-1)[:, 2].tolist()
    assert classifier(classifiers[3], label="good", output="probability")(rows) == close(shares)
    assert classifier(classifiers[1], output="sigmoid")(rows) == close(torch.tensor(one).sigmoid()[:, 0].tolist())
    before = torch.get_num_threads()
    assert classifier(classifiers[1], batchSize=5, threads=3).batch_size == 5
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


def test_what_a_classifier_sees(classifiers):
    path = classifiers[1]
    plain = row("7 good")
    chat = RewardRow("(template)", "7 good", "7", "sums", messages=[{"role": "user", "content": "what is 3 + 4 ?"}])
    conversation = "user what is 3 + 4 ? [SEP] assistant 7 good [SEP] "
    for given, options, expected in [
        (plain, {"input": "pair"}, logits(path, "What is 3 + 4?", "7 good")),
        (chat, {"input": "chat"}, logits(path, conversation, special=False)),
        (RewardRow("what is 3 + 4 ?", "7 good", "7", ""), {"input": "chat"}, logits(path, conversation, special=False)),
        (row("7 7 7 8 bad 7 good"), {"maxLength": 6}, logits(path, "8 bad 7 good")),  # its end, with [CLS], [SEP]
    ]:
        assert classifier(path, **options)([given]) == pytest.approx(expected, abs=1e-5)


def test_a_class_must_be_named_where_there_are_several(classifiers):
    with pytest.raises(ValueError, match=r"label is not set, and the model has the classes 0 \(bad\), 1 \(fair\), 2"):
        classifier(classifiers[3])
    with pytest.raises(ValueError, match="'best' is none of the model's classes"):
        classifier(classifiers[3], label="best")


def test_weights_that_are_pickled_are_refused(classifiers, tmp_path):
    shutil.copytree(classifiers[1], tmp_path / "pickled")
    weights = tmp_path / "pickled" / "model.safetensors"
    torch.save(load_file(weights), tmp_path / "pickled" / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(OSError, match="safetensors"):
        classifier(tmp_path / "pickled")


def test_kinds_are_combined_and_fail_apart(pool_of, server, package, tmp_path):
    server.answer = lambda number, body: (200, [None if text == "x" else 10.0 for text in body["completions"]], {})
    functions = [
        {"name": "http", **http(server)},
        {"name": "module", "weight": 2.0, "module": {"path": "mine.rules.sums:right", "directory": package}},
        {"name": "rule", "builtin": {"rule": "exact_match"}},
    ]
    spec = RewardSpec(functions=[RewardFunction.model_validate(one) for one in functions], timeout_seconds=60)
    pool = RewardPool(spec, str(tmp_path))
    result = pool.score([row("7"), row("x")])
    assert result.rewards == [13.0, 0.0]
    assert result.function_scores == [[10.0, None], [1.0, 0.0], [1.0, 0.0]]
    pool.close()
