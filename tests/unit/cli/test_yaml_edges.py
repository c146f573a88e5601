"""What `grpoctl plan` makes of files at YAML's edges: a plan, or one clear text and exit code 64."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_api.names import ExitCode
from grpoctl.errors import CliError
from grpoctl.jobfile import read_job
from grpoctl.main import app
from grpoctl.yamlfile import MAX_BYTES, MAX_DEPTH

HEAD = """\
apiVersion: grpo.dev/v1alpha1
kind: GRPOJob
metadata: {name: sums}
spec:
  model: {path: /models/m}
  data: {train: {reasoningGym: {task: chain_sum, size: 6000}}, trainBatchSize: 8}
  rollout: {"n": 8}
  actor: {ppoMiniBatchSize: 8, optim: {lr: 1e-6}}
  trainer: {totalSteps: 5}
"""
RULE = "  reward: {functions: [{name: correct, builtin: {rule: numeric}}]}\n"
JOB = HEAD + RULE


def python_reward(lines: list[str]) -> str:
    source = "\n".join(f"            {line}".rstrip() for line in lines)
    return f"{HEAD}  reward:\n    functions:\n      - name: mine\n        python:\n          source: |\n{source}\n"


@pytest.fixture
def read(tmp_path):
    """Reads a file of these bytes or this text."""

    def from_text(text: str | bytes):
        path = tmp_path / "job.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_job(str(path))

    return from_text


@pytest.fixture
def refusal(read):
    """The text that a file is refused with."""

    def of(text: str | bytes) -> str:
        with pytest.raises(CliError) as error:
            read(text)
        assert error.value.exit_code == ExitCode.BAD_SPEC
        assert len(str(error.value)) < 600
        return str(error.value)

    return of


def test_plan_through_the_command_line(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + JOB.replace("\n", "\r\n").encode())
    result = CliRunner().invoke(app, ["plan", str(path), "-o", "json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["responsesPerStep"] == 64


def test_standard_input_is_utf_8(monkeypatch):
    text = JOB.replace("  rollout:", "  template: {env: [{name: A, value: grüß}]}\n  rollout:")
    result = CliRunner().invoke(app, ["plan", "-"], input=b"\xef\xbb\xbf" + text.encode())
    assert result.exit_code == 0, result.output


def test_crlf_and_byte_order_mark_leave_the_source_as_it_is(read):
    text = python_reward(["def compute_score(data_source, solution_str, ground_truth, extra_info):", "    return 1.0"])
    _, plain = read(text)
    _, other = read(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert other.spec == plain.spec
    assert "\r" not in other.spec.reward.functions[0].python.source


def test_non_ascii_text_arrives(read):
    text = JOB.replace("trainBatchSize: 8", 'trainBatchSize: 8, promptTemplate: "计算 {prompt}，→ 数字 🙂"')
    assert read(text)[1].spec.data.prompt_template == "计算 {prompt}，→ 数字 🙂"


def test_another_encoding_is_named(refusal):
    assert "byte 0 (0xff) is not UTF-8: save the file as UTF-8" in refusal(b"\xff\xfe" + JOB.encode("utf-16-le"))
    assert "(0xfc) is not UTF-8" in refusal(JOB.replace("sums", "s\u00fcms").encode("latin-1"))


def test_long_reward_source(read, refusal):
    lines = ["def compute_score(data_source, solution_str, ground_truth, extra_info):"]
    lines += [f"    x{number} = {number}" for number in range(10_000)] + ["    return 1.0"]
    source = read(python_reward(lines))[1].spec.reward.functions[0].python.source
    assert source.count("\n") == 10_002
    lines[5_000] = "    return ("
    assert "mine.py, line 5001: SyntaxError" in refusal(python_reward(lines))


def test_one_mebibyte(refusal, read):
    functions = [
        {"name": f"f{number}", "python": {"source": f"def compute_score(batch): pass\n# {'x' * 65_000}"}}
        for number in range(16)
    ]
    text = HEAD + "  reward: " + json.dumps({"functions": functions}) + "\n"
    assert len(text) > 2**20 - 2**14
    said = refusal(text)
    assert "spec.reward.functions: take 2" in said
    assert "move large sources into the image" in said
    read(HEAD + "  reward: " + json.dumps({"functions": functions[:7]}) + "\n")


def test_more_than_a_request(refusal):
    said = refusal(JOB + "# " + "x" * MAX_BYTES)
    assert f"than the {MAX_BYTES} that the API server takes" in said


def test_one_value_too_long_is_not_repeated_in_full(refusal):
    said = refusal(python_reward(["compute_score = len", "# " + "x" * 270_000]))
    assert "spec.reward.functions[0].python.source: has 2700" in said
    assert "at most 262144: shorten it" in said


@pytest.mark.parametrize(
    ("depth", "words"),
    [
        (10, None),
        (70, "spec.template.podOverlay: is nested 72 levels deep, more than 64"),
        (MAX_DEPTH + 10, f"is nested more than {MAX_DEPTH} levels deep"),
        (5_000, f"is nested more than {MAX_DEPTH} levels deep"),
    ],
)
def test_nested_overlay(read, refusal, depth, words):
    text = f"{JOB}  template: {{podOverlay: {{spec: {{affinity: {'{a: ' * depth}1{'}' * depth}}}}}}}\n"
    if words is None:
        read(text)
    else:
        assert words in refusal(text)


def test_anchors(read):
    text = JOB.replace("trainBatchSize: 8", "trainBatchSize: &batch 8")
    text = text.replace("ppoMiniBatchSize: 8", "ppoMiniBatchSize: *batch")
    assert read(text)[1].spec.actor.ppo_mini_batch_size == 8


def test_merge_keys(read):
    functions = """\
  reward:
    functions:
      - &first {name: a, weight: 0.5, builtin: {rule: numeric}}
      - {<<: *first, name: b}
"""
    raw, job = read(HEAD + functions)
    assert [(one.name, one.weight) for one in job.spec.reward.functions] == [("a", 0.5), ("b", 0.5)]
    assert "<<" not in json.dumps(raw), "what is sent to the API server"


def test_anchor_of_an_unknown_name(refusal):
    assert "line 5, column 17: found undefined alias 'm'" in refusal(JOB.replace("/models/m", "*m"))


def test_an_anchor_inside_itself(refusal):
    said = refusal(JOB + "  template: {podOverlay: &loop {spec: {affinity: *loop}}}\n")
    assert "an anchor holds itself" in said


def test_anchors_that_stand_for_too_much(refusal):
    lines = ["  template:", "    podOverlay:", "      metadata:", "        annotations:"]
    lines.append(f"          a0: &a0 [{', '.join(['x'] * 10)}]")
    lines += [f"          a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "its anchors stand for more than 1000000 values" in refusal(JOB + "\n".join(lines) + "\n")


def test_duplicate_keys_are_named_with_their_line(refusal):
    said = refusal(JOB + "  trainer: {totalSteps: 6}\n")
    assert 'found duplicate key "trainer"' in said
    assert "line 11, column 3" in said


def test_tabs(refusal):
    said = refusal(JOB.replace("  model: {path", "\tmodel: {path"))
    assert "line 5, column 1" in said
    assert "indent with spaces, not with tabs" in said
    assert refusal(JOB.replace("spec:\n", "spec:\n\t\n", 1).replace("  model", "\t model"))


def test_a_date_is_text_as_for_kubectl(read):
    text = JOB.replace("/models/m", "Qwen/Qwen2.5-0.5B, revision: 2026-01-31")
    assert read(text)[1].spec.model.revision == "2026-01-31"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds nothing; it must hold one GRPOJob"),
        ("\n# only a comment\n---\n", "holds nothing"),
        (JOB + "---\n" + JOB, "holds 2 documents"),
        ("just text\n", "holds a text"),
        ("12\n", "holds a number"),
        ("- a\n", "holds a list"),
        ("apiVersion: v1\nkind: List\nitems:\n- {kind: GRPOJob}\n- {kind: GRPOJob}\n", "holds a List of 2"),
        ("apiVersion: v1\nkind: ConfigMap\ndata: {}\n", "holds a ConfigMap; it must hold one GRPOJob"),
        (JOB.replace("kind: GRPOJob\n", ""), "kind: is missing: add kind: GRPOJob"),
        (JOB.replace("kind: GRPOJob", "kind: GRPOjob"), 'kind: must be GRPOJob (got "GRPOjob")'),
        (JOB.replace("metadata: {name: sums}", "metadata: sums"), "metadata: must be an object"),
        (JOB.replace("metadata: {name: sums}", "metadata: {name: 12}"), "put it in quotes"),
        ("spec: {model: {path: m}\n", "line 2"),
        (JOB.replace("/models/m", "!!python/object:os.system m"), "could not determine a constructor"),
        (JOB.replace("/models/m", "!env PATH_OF_MODEL"), "!env"),
        ("{" * 500, f"is nested more than {MAX_DEPTH} levels deep"),
        ("a: \x00\n", "special characters are not allowed"),
    ],
)
def test_what_holds_no_job(refusal, text, words):
    assert words in refusal(text)


def test_a_document_end_and_comments_around_one_job_are_fine(read):
    read("# a comment\n---\n" + JOB + "...\n---\n# nothing more\n")


def test_a_key_that_kubectl_reads_as_false_is_n_here(read):
    assert read(JOB.replace('"n": 8', "n: 8"))[1].spec.rollout.n == 8


def test_json_is_yaml(read, tmp_path):
    raw, _ = read(JOB)
    assert read(json.dumps(raw, indent="\t"))[0] == raw


def test_directory_in_place_of_a_file(tmp_path: Path):
    with pytest.raises(CliError, match="Is a directory"):
        read_job(str(tmp_path))
