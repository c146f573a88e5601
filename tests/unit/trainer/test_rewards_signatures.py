"""Functions as their authors wrote them: the article's batch, verl's and TRL's, through the pool that training uses."""

import pytest

from grpo_api.rewards.rows import RewardRow
from grpo_api.spec.reward import PythonReward, RewardFunction, RewardSpec
from grpo_trainer.errors import UserInputError
from grpo_trainer.rewards.pool import RewardPool


def row(completion: str, ground_truth: object = "7", messages: list | None = None, **columns: object) -> RewardRow:
    return RewardRow("What is 3 + 4?", completion, ground_truth, "sums", {"level": 1}, columns, messages)


@pytest.fixture
def pool_of(tmp_path):
    """Makes pools of one inline source."""
    pools = []

    def make(source: str, function: str = "compute_score", timeout: float = 60) -> RewardPool:
        python = PythonReward(source=source, function=function)
        spec = RewardSpec(functions=[RewardFunction(name="fn", python=python)], timeout_seconds=timeout, workers=1)
        pools.append(RewardPool(spec, str(tmp_path)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


ARTICLE = """
import torch

def reward_fn(batch):
    rewards = []
    for prompt, response in zip(batch["prompt"], batch["response"]):
        assert "3 + 4" in prompt
        rewards.append(1.0 if "7" in response else -len(response) / 100)
    return torch.tensor(rewards, dtype=torch.float32, device='cuda')
"""


def test_the_articles_function_runs_without_a_gpu(pool_of):
    pool = pool_of(ARTICLE, "reward_fn")
    pool.check(row("7"))
    assert pool.score([row("It is 7"), row("no"), row("7")]).rewards == pytest.approx([1.0, -0.02, 1.0])


CUDA_IN_EVERY_WAY = """
def compute_score(batch):
    import torch  # late: the first call must be redirected too
    size, gpu = len(batch["response"]), torch.device("cuda:0")
    parts = [
        torch.zeros(size, device=gpu),
        torch.zeros(size, device=0),
        torch.zeros(size).cuda(),
        torch.zeros(size).to("cuda", non_blocking=True),
        torch.zeros(size).to(device="cuda"),
        torch.zeros(size).to(torch.cuda.current_device()),
        torch.cuda.FloatTensor([0.0] * size),
        torch.zeros(size).type("torch.cuda.FloatTensor"),
        torch.zeros_like(torch.ones(size), device="cuda"),
        torch.nn.Linear(1, 1, device="cuda").cuda().to("cuda")(torch.zeros(size, 1)).squeeze(1) * 0,
    ]
    with torch.device("cuda"):
        parts.append(torch.zeros(size))
    torch.set_default_device("cuda")
    torch.cuda.synchronize()
    assert not torch.cuda.is_available()
    return sum(parts, torch.ones(size)).to(torch.bfloat16)
"""


def test_cuda_lands_on_the_cpu_however_it_is_named(pool_of):
    result = pool_of(CUDA_IN_EVERY_WAY).score([row("a"), row("b"), row("c")])
    assert result.rewards == [1.0] * 3
    assert not result.errors


def test_cuda_tensor_while_the_source_is_imported(pool_of):
    source = "import torch\nBONUS = torch.tensor([0.5], device='cuda')\ndef compute_score(batch): return BONUS\n"
    assert pool_of(source).score([row("7")]).rewards == [0.5]


def test_torch_can_be_looked_for_before_it_is_imported(pool_of):
    source = (
        "import importlib.util\nFOUND = importlib.util.find_spec('torch') is not None\n"
        "def compute_score(batch):\n    import torch\n    return torch.ones(1, device='cuda') * FOUND\n"
    )
    assert pool_of(source).score([row("7")]).rewards == [1.0]


@pytest.mark.parametrize(
    ("result", "rewards"),
    [
        ("[1, None, 0.5]", [1.0, None, 0.5]),
        ("(1, True, 0)", [1.0, 1.0, 0.0]),
        ("numpy.array([1, 2, 3], dtype=numpy.float16)", [1.0, 2.0, 3.0]),
        ("numpy.array([1, None, 3], dtype=object)", [1.0, None, 3.0]),
        ("[numpy.float32(1), numpy.bool_(False), 2]", [1.0, 0.0, 2.0]),
        ("[1, float('nan'), float('inf')]", [1.0, None, None]),
    ],
)
def test_batch_results(pool_of, result, rewards):
    pool = pool_of(f"import numpy\ndef compute_score(batch): return {result}\n")
    assert pool.score([row("a"), row("b"), row("c")]).rewards == rewards


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("1.0", r"line 2: TypeError: returned float 1.0; it must return a list"),
        ("numpy.zeros((1, 1))", r"returned a ndarray of shape \(1, 1\); it must be \(1,\)"),
        ("numpy.float32(1)", r"returned a float32 of shape \(\); it must be \(1,\)"),
        ("[1, 2]", "returned 2 scores for 1 completions"),
        ("{'score': 1}", "returned dict"),
        ("{1.0}", "returned set"),
        ("['1']", "a score must be a number or None"),
        ("batch['answer']", "KeyError: 'answer; the batch has prompt, response, ground_truth, data_source, extra_info"),
    ],
)
def test_wrong_batch_results(pool_of, result, message):
    with pytest.raises(UserInputError, match=message) as caught:
        pool_of(f"import numpy\ndef compute_score(batch): return {result}\n").check(row("7"))
    assert caught.value.reason == "RewardError"


def test_batch_keys(pool_of):
    source = """
def compute_score(batch, /, scale=2.0):
    assert set(batch) == {"prompt", "response", "ground_truth", "data_source", "extra_info", "answer", "late"}
    assert batch["response"] == ["7", "8"] and batch["prompt"] == ["What is 3 + 4?"] * 2
    assert batch["ground_truth"] == ["7", 9] and batch["late"] == [None, 1] and batch["data_source"][0] == "sums"
    assert batch["extra_info"] == [{"level": 1}] * 2 and batch.get("absent") is None
    return [scale * (r == a) for r, a in zip(batch["response"], batch["answer"])]
"""
    rows = [row("7", answer="7", response="a column"), row("8", 9, answer="7", late=1)]
    assert pool_of(source).score(rows).rewards == [2.0, 0.0]


def test_a_batch_that_fails_is_scored_by_the_sample(pool_of):
    source = "def compute_score(batch): return [1 / len(text) for text in batch['response']]\n"
    result = pool_of(source).score([row("ab"), row(""), row("abcd")])
    assert result.rewards == [0.5, None, 0.25]
    assert result.errors == {("fn", "exception"): 1}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("def compute_score(text, answer): pass", "its parameters are text, answer. The names"),
        ("def compute_score(): pass", "its parameters are none"),
        (
            "def compute_score(batch, tokenizer): pass",
            r"as a \(batch\) function it is given no tokenizer: set a default",
        ),
        ("def compute_score(solution_str, tokenizer): pass", "as a verl function it is given no tokenizer"),
        ("def compute_score(completions, /): pass", "its parameters are completions"),
        ("def compute_score(data_sources, solution_strs, ground_truths, extra_infos): pass", "solution_strs"),
        ("compute_score = 3", "compute_score is a int, not a function"),
    ],
)
def test_what_fits_no_signature(pool_of, function, message):
    with pytest.raises(UserInputError, match=message) as caught:
        pool_of(function).check(row("7"))
    assert caught.value.reason == "RewardSignatureError"
    for line in ("data_source, solution_str, ground_truth, extra_info", "prompts, completions, **columns", "(batch)"):
        assert line in str(caught.value)


def test_trl_messages_follow_the_prompts_shape(pool_of):
    # As TRL's own accuracy_reward: messages, a column, a logger that is given only to those who name it.
    source = """
def compute_score(prompts, completions, solution, log_extra, log_metric=None, **kwargs):
    log_extra("solution", solution)
    assert log_metric is not None and not {"log_extra", "log_metric"} & set(kwargs)
    assert prompts[0] == [{"role": "user", "content": "What is 3 + 4?"}]
    return [float(c[0]["content"] == s and c[0]["role"] == "assistant") for c, s in zip(completions, solution)]
"""
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    rows = [row(text, messages=messages, solution="7") for text in ("7", "8")]
    assert pool_of(source).score(rows).rewards == [1.0, 0.0]


def test_a_column_that_the_rows_lack_is_named(pool_of):
    with pytest.raises(UserInputError, match=r"needs solution, and the rows have ground_truth, .*, answer, prompts"):
        pool_of("def compute_score(completions, solution): pass").check(row("7", answer="7"))
